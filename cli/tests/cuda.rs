//! Tests of error messages and cleanup for GPUs that are missing, too old, too small, or lost, simulated by the
//! emulated driver. `LLAMA_CUDA=skip` skips them on machines that cannot download NVRTC.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use crate::common::{Ended, Home, ended, root};

/// Name of the emulated GPU.
const EMULATED: &str = "Emulated CUDA device";

/// Returns the LD_LIBRARY_PATH of the emulated driver and NVRTC.
fn library_path() -> &'static str {
    static PATH: OnceLock<String> = OnceLock::new();
    PATH.get_or_init(|| {
        let output = Command::new("bash")
            .args([
                "-c",
                r#"set -e; env=$(bash "$0" --env); eval "$env"; printf %s "$LD_LIBRARY_PATH""#,
            ])
            .arg(root().join("tests/cuda.sh"))
            .output()
            .expect("bash runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let hint = "set LLAMA_CUDA=skip if NVRTC cannot be downloaded";
        assert!(output.status.success(), "{}({hint})", text(&output.stderr));
        text(&output.stdout)
    })
}

/// Directory of compiled kernels that the tests share, because compiling takes longer than most tests.
const CACHE: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/cuda-cache");

/// Runs `llama` with the given settings of the emulated driver. Compiled kernels are cached across tests.
fn llama(home: &Home, settings: &str, args: &[&str]) -> Ended {
    llama_with_cache(home, CACHE.as_ref(), settings, args)
}

/// Like [`llama`], with another directory of compiled kernels.
fn llama_with_cache(home: &Home, cache: &Path, settings: &str, args: &[&str]) -> Ended {
    let mut command = home.llama(args);
    command
        .env("LD_LIBRARY_PATH", library_path())
        .env("LLAMA_CACHE", cache)
        .env("LLAMA_CUDA_EMU", settings)
        .env_remove("LLAMA_CUDA_EMU_REPORT");
    ended(command)
}

/// Returns true if CUDA tests are skipped.
fn is_left_out(home: &Home) -> bool {
    if std::env::var("LLAMA_CUDA").is_ok_and(|value| value == "skip") {
        eprintln!("skipped because of LLAMA_CUDA=skip");
        return true;
    }
    let listed = llama(home, "", &["devices"]);
    assert!(listed.succeeds().contains(EMULATED), "{}", listed.out);
    false
}

#[test]
fn devices_lists_unavailable_devices() {
    let home = Home::new();
    let listed = ended(home.llama(&["devices"]));
    let listed = listed.succeeds();
    assert!(listed.starts_with("cpu"), "{listed}");
    assert!(
        listed.contains("cuda0") || listed.contains("unavailable: cuda: "),
        "{listed}"
    );
    let json = ended(home.llama(&["devices", "--json"]));
    assert!(json.succeeds().contains("\"flaws\""), "{}", json.out);
}

#[test]
fn unusable_gpu_error_gives_reason() {
    let home = Home::new();
    if is_left_out(&home) {
        return;
    }
    let model = home.model("llama-dense", None);
    let (model, out) = (
        model.as_str(),
        home.path("logits").into_os_string().into_string().expect("UTF-8"),
    );
    let args = [
        "logits", "--device", "cuda", "-m", model, "--tokens", "1,2,3", "-o", &out,
    ];
    for (settings, reason) in [
        ("driver=11000", "it supports CUDA 11.0, but 11.4 or newer is required"),
        ("devices=0", "cuInit"),
        ("sm=70", "compute capability 7.0; 7.5 or newer is required"),
        ("busy=1", "CUDA_ERROR_DEVICE_UNAVAILABLE"),
        ("used=8G", "cannot offload a single layer to cuda0"),
        ("fail_alloc=2", "CUDA_ERROR_OUT_OF_MEMORY"),
        ("fail_launch=3", "requested for launch, at the launch of "),
        ("fault_at=4", "CUDA_ERROR"),
        ("fail_copy=3", "cuMemcpy"),
        ("lost_at=5", "CUDA_ERROR"),
    ] {
        let failed = llama(&home, settings, &args);
        assert_eq!(failed.status, 1, "{settings}: {}{}", failed.out, failed.err);
        assert!(failed.err.contains(reason), "{settings}: {}", failed.err);
        assert!(!failed.err.contains("leak"), "{settings}: {}", failed.err);
        assert!(!failed.err.contains("panicked"), "{settings}: {}", failed.err);
    }
}

/// If no device is named and the GPU cannot be used, the CPU is used instead.
#[test]
fn cpu_replaces_unusable_gpu_by_default() {
    let home = Home::new();
    if is_left_out(&home) {
        return;
    }
    let model = home.model("llama-dense", None);
    let run = |settings: &str, more: &[&str]| {
        let args = [&["run", &model, "abc", "-n", "3", "--temp", "0", "--no-stats"], more].concat();
        llama(&home, settings, &args)
    };
    let on_cpu = run("", &["--device", "cpu"]);
    let on_cpu = on_cpu.succeeds();
    for settings in ["driver=11000", "devices=0", "sm=70", "busy=1", "used=8G"] {
        let ended = run(settings, &[]);
        assert_eq!(ended.succeeds(), on_cpu, "{settings}: {}", ended.err);
        assert!(!ended.err.contains("leak"), "{settings}: {}", ended.err);
    }
}

/// A kernel of warpgroups that fails is replaced, and one line names the kernel, the error, and the remedy.
#[test]
fn failed_kernel_of_warpgroups_is_reported_once() {
    let home = Home::new();
    if is_left_out(&home) {
        return;
    }
    let model = home.path("wide.gguf").into_os_string().into_string().expect("UTF-8");
    let sizes = ["n_layer=2", "n_vocab=512", "n_ff=12800"]
        .map(|size| ["--set", size])
        .concat();
    let synth = [
        &["synth", "--shape", "tiny", "--type", "q8_0", "-o", &model],
        &sizes[..],
    ]
    .concat();
    llama(&home, "", &synth).succeeds();
    let bench = [
        "bench", "-m", &model, "--device", "cuda0", "-ngl", "99", "-p", "128", "-n", "0", "-r", "2",
    ];
    for (settings, reason) in [
        ("fail_products=1", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"),
        ("no_products=1", "CUDA_ERROR_INVALID_PTX"),
    ] {
        let ended = llama(&home, settings, &bench);
        ended.succeeds();
        let replaced = |line: &&str| line.contains("a slower CUDA kernel replaces mul_mat_wgmma (mul_mat_wgmma.cu");
        let lines: Vec<&str> = ended.err.lines().filter(replaced).collect();
        assert_eq!(lines.len(), 1, "{settings}: {}", ended.err);
        for part in [reason, "update the NVIDIA driver and NVRTC"] {
            assert!(lines[0].contains(part), "{settings}: {}", lines[0]);
        }
    }
}

/// The precompiled kernels need compute capability 8.0. Without NVRTC, older GPUs are unusable.
#[test]
fn turing_without_nvrtc_error_names_the_compiler() {
    let home = Home::new();
    if is_left_out(&home) {
        return;
    }
    let driver = library_path().split(':').next();
    let model = home.model("llama-dense", None);
    let mut command = home.llama(&["run", &model, "abc", "-n", "3", "-dev", "cuda"]);
    command
        .env("LD_LIBRARY_PATH", driver.expect("the path starts with the driver"))
        .env("LLAMA_CUDA_EMU", "sm=75");
    let failed = ended(command);
    assert_eq!(failed.status, 1, "{}{}", failed.out, failed.err);
    for part in [
        "compute capability 7.5 and no precompiled kernels: cannot load libnvrtc",
        "install the CUDA toolkit or the PyPI package nvidia-cuda-nvrtc",
    ] {
        assert!(failed.err.contains(part), "{part}: {}", failed.err);
    }
    assert!(!failed.err.contains("panicked"), "{}", failed.err);
}

/// If the driver lacks a function, the error names the function.
#[test]
fn driver_error_names_missing_function() {
    let home = Home::new();
    if is_left_out(&home) {
        return;
    }
    let directory = library_path()
        .split(':')
        .next()
        .expect("LD_LIBRARY_PATH starts with the driver's directory");
    let mut driver =
        std::fs::read(std::path::Path::new(directory).join("libcuda.so")).expect("the emulated driver exists");
    let name = b"\0cuGraphLaunch\0";
    let places: Vec<usize> = (0..driver.len() - name.len())
        .filter(|&i| driver[i..].starts_with(name))
        .collect();
    assert!(!places.is_empty(), "the driver exports cuGraphLaunch");
    places.iter().for_each(|&i| driver[i + 1] = b'_');
    std::fs::write(home.path("libcuda.so"), driver).expect("the temporary directory is writable");
    let path = format!("{}:{}", home.path("").display(), library_path());
    let mut command = home.llama(&["devices"]);
    command.env("LD_LIBRARY_PATH", path);
    let listed = ended(command);
    let told = "unavailable: cuda: libcuda is too old: function cuGraphLaunch is missing";
    assert!(listed.succeeds().contains(told), "{}", listed.out);
}

/// The first run compiles the kernels and reports their number; later runs read them from the cache.
#[test]
fn first_run_reports_number_of_compiled_kernels() {
    let home = Home::new();
    if is_left_out(&home) {
        return;
    }
    let model = home.model("llama-dense", None);
    let args = [
        "run",
        &model,
        "abc",
        "-n",
        "2",
        "--temp",
        "0",
        "--no-stats",
        "-dev",
        "cuda",
    ];
    let numbers = |settings: &str| -> Vec<u32> {
        let ended = llama_with_cache(&home, &home.path("cache"), settings, &args);
        ended.succeeds();
        let lines = ended
            .err
            .lines()
            .filter_map(|line| line.strip_suffix(" CUDA kernels (once per GPU and version)"));
        let numbers = lines.map(|line| line.rsplit(' ').next().and_then(|n| n.parse().ok()));
        numbers.collect::<Option<_>>().expect("each line has a number")
    };
    for settings in ["", "cubin=1"] {
        let found = numbers(settings);
        assert!(found.iter().sum::<u32>() > 8, "{settings}: {found:?}");
        assert_eq!(numbers(settings), [0; 0], "{settings}");
    }
}

/// `LLAMA_CUDA_TIMES` names a file for the times of all kernels, also of CUDA graphs' kernels.
#[test]
fn kernel_times_are_written_to_file() {
    let home = Home::new();
    if is_left_out(&home) {
        return;
    }
    let model = home.model("llama-dense", None);
    let run = |file: std::path::PathBuf| {
        let mut command = home.llama(&[
            "run",
            &model,
            "abc",
            "-n",
            "6",
            "--temp",
            "0",
            "--no-stats",
            "--ignore-eos",
            "-dev",
            "cuda",
        ]);
        command
            .env("LD_LIBRARY_PATH", library_path())
            .env("LLAMA_CACHE", CACHE)
            .env("LLAMA_CUDA_TIMES", file);
        ended(command)
    };
    let file = home.path("times.json");
    run(file.clone()).succeeds();
    let times = std::fs::read(&file).expect("the file was written");
    let times: serde_json::Value = serde_json::from_slice(&times).expect("JSON");
    assert_eq!(times["is_emulated"], true);
    assert!(
        times["device"].as_str().is_some_and(|name| name.starts_with("cuda0: ")),
        "{times}"
    );
    let kernels = times["kernels"].as_array().expect("a list");
    assert!(kernels.len() > 8, "{times}");
    for kernel in kernels {
        // A prompt, and at least five tokens.
        let numbers = ["launches", "us_median", "us_min", "block"].map(|name| kernel[name].as_f64());
        assert!(numbers.iter().all(|n| n.is_some_and(|n| n > 0.0)), "{kernel}");
    }
    let product = kernels
        .iter()
        .find(|k| k["kernel"].as_str().is_some_and(|name| name.starts_with("mul_vec")));
    let product = product.expect("a matmul of the tokens");
    assert!(
        product["gb_s"].is_number() && product["tflops"].is_number(),
        "{product}"
    );
    // A file that cannot be written is a warning.
    let unwritable = run(home.path("missing/times.json"));
    unwritable.succeeds();
    assert!(
        unwritable.err.contains("cannot write the kernel times to "),
        "{}",
        unwritable.err
    );
}

#[test]
fn bench_times_need_a_gpu() {
    let home = Home::new();
    if is_left_out(&home) {
        return;
    }
    let model = home.model("llama-dense", None);
    let args = ["bench", "-m", &model, "-p", "4", "-n", "2", "-r", "1", "--times"];
    let emulated = llama(&home, "", &[&args[..], &["--device", "cuda"]].concat());
    assert_eq!(emulated.status, 1);
    let reason = "--times needs a GPU: the emulated device measures no time";
    assert!(emulated.err.contains(reason), "{}", emulated.err);
    let on_cpu = ended(home.llama(&[&args[..], &["--device", "cpu"]].concat()));
    assert_eq!(on_cpu.status, 1);
    assert!(on_cpu.err.contains("no kernel ran on an NVIDIA GPU"), "{}", on_cpu.err);
}

/// Losing a device during generation is an error; the text generated before is printed.
#[test]
fn losing_gpu_during_generation_is_an_error() {
    let home = Home::new();
    if is_left_out(&home) {
        return;
    }
    let model = home.model("llama-dense", None);
    let run = |settings: &str| {
        let args = [
            "run",
            &model,
            "abc",
            "-n",
            "12",
            "--temp",
            "0",
            "--no-stats",
            "--ignore-eos",
            "-dev",
            "cuda",
        ];
        llama(&home, settings, &args)
    };
    let whole = run("");
    let whole = whole.succeeds();
    let mut began = 0;
    // The first steps launch single kernels, later steps launch CUDA graphs.
    for n in [20, 40, 80, 120, 160] {
        for what in ["lost_at", "fail_launch", "fault_at"] {
            let settings = format!("{what}={n}");
            let ended = run(&settings);
            assert_eq!(ended.status, 1, "{settings}: {}{}", ended.out, ended.err);
            assert!(ended.err.contains("CUDA_ERROR"), "{settings}: {}", ended.err);
            for word in ["leak", "panicked"] {
                assert!(!ended.err.contains(word), "{settings}: {}", ended.err);
            }
            assert!(
                whole.starts_with(ended.out.trim_end()),
                "{settings}: {} of {whole}",
                ended.out
            );
            began += usize::from(!ended.out.trim().is_empty());
        }
    }
    assert!(began > 3, "only {began} runs printed text before the failure");
}

/// A GPU gets as many layers as fit with their caches and buffers; the plan predicts the number.
#[test]
fn gpu_gets_layers_that_fit() {
    let home = Home::new();
    if is_left_out(&home) {
        return;
    }
    let model = home.model("llama-dense", None);
    let fitted = ["-dev", "cuda", "-fitt", "4", "-ub", "16"];
    let run = |settings: &str, more: &[&str]| {
        let args = [
            &["run", &model, "abc", "-n", "2", "--temp", "0", "--no-stats"],
            &fitted[..],
            more,
        ]
        .concat();
        llama(&home, settings, &args)
    };
    let planned = |settings: &str| {
        let args = [&["inspect", &model, "--plan", "--json"], &fitted[..]].concat();
        let plan = llama(&home, settings, &args);
        let plan: serde_json::Value = serde_json::from_str(plan.succeeds()).expect("JSON");
        plan["device_layers"].as_u64().expect("a number")
    };
    let (all, some) = (run("", &[]), run("memory=12M", &[]));
    assert_eq!(all.succeeds(), some.succeeds());
    assert_eq!(planned(""), 3);
    let n = planned("memory=12M");
    assert!((1..3).contains(&n), "{n}");
    let told = format!("{n} of 3 layers fit in free device memory");
    assert!(
        some.err.contains(&told) && !all.err.contains("layers fit in"),
        "{}{}",
        some.err,
        all.err
    );
    let none = run("memory=4M", &[]);
    none.fails_saying(&["cannot offload a single layer to cuda0"]);
}

#[test]
fn failed_allocation_leaks_nothing() {
    let home = Home::new();
    if is_left_out(&home) {
        return;
    }
    let model = home.model("llama-dense", None);
    let (model, out) = (
        model.as_str(),
        home.path("logits").into_os_string().into_string().expect("UTF-8"),
    );
    let args = [
        "logits", "--device", "cuda", "-m", model, "--tokens", "1,2,3", "-o", &out,
    ];
    for n in 1..40 {
        let ended = llama(&home, &format!("fail_alloc={n}"), &args);
        assert!(!ended.err.contains("leak"), "allocation {n}: {}", ended.err);
        assert!(!ended.err.contains("panicked"), "allocation {n}: {}", ended.err);
        if ended.status == 0 {
            assert!(n > 3, "only {n} allocations were made");
            return;
        }
    }
    panic!("no run succeeded without a failed allocation");
}

/// If an allocation fails while loading, the CPU takes over with a single warning. With an explicit --device,
/// it is an error.
#[test]
fn out_of_memory_during_load_falls_back_to_cpu() {
    let home = Home::new();
    if is_left_out(&home) {
        return;
    }
    let model = home.model("llama-dense", None);
    let run = |settings: &str, more: &[&str]| {
        let args = ["run", &model, "abc", "-n", "3", "--temp", "0", "--no-stats", "-c", "64"];
        llama(&home, settings, &[&args, more].concat())
    };
    let on_cpu = run("", &["--device", "cpu"]);
    let on_cpu = on_cpu.succeeds();
    let told = "using host memory instead";
    let mut n = 1;
    loop {
        let settings = format!("fail_alloc={n}");
        let unnamed = run(&settings, &[]);
        if !unnamed.err.contains(told) {
            break;
        }
        assert_eq!(unnamed.succeeds(), on_cpu, "{settings}: {}", unnamed.err);
        let warnings: Vec<&str> = unnamed.err.lines().filter(|line| line.contains("warning:")).collect();
        assert!(
            warnings.len() == 1 && warnings[0].contains("cuda0"),
            "{settings}: {}",
            unnamed.err
        );
        let named = run(&settings, &["--device", "cuda"]);
        assert_eq!(named.status, 1, "{settings}: {}{}", named.out, named.err);
        assert!(
            named.err.contains("cannot load the weights: ") && named.err.contains("cuda0"),
            "{settings}: {}",
            named.err
        );
        for ended in [unnamed, named] {
            for word in ["leak", "panicked"] {
                assert!(!ended.err.contains(word), "{settings}: {}", ended.err);
            }
        }
        n += 1;
    }
    // Weights and staging buffers.
    assert!(n > 4, "only {n} allocations belong to loading");
}
