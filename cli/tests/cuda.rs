//! Cards that are missing, old, too small or lost: what is said, and that nothing is left behind. The emulated driver does these things on
//! request. `LLAMA_CUDA=skip` leaves that out where the compiler of kernels cannot be fetched.

use std::process::Command;
use std::sync::OnceLock;

use crate::common::{Ended, Home, ended, root};

/// What the emulated card is called.
const EMULATED: &str = "Emulated CUDA device";

/// The loader's path with the emulated driver and the compiler of kernels.
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
        let hint = "LLAMA_CUDA=skip leaves this out where NVRTC cannot be fetched";
        assert!(output.status.success(), "{}({hint})", text(&output.stderr));
        text(&output.stdout)
    })
}

/// Runs `llama` with these settings of the emulated driver, kernels compiled once for all runs.
fn llama(home: &Home, settings: &str, args: &[&str]) -> Ended {
    let mut command = home.llama(args);
    command
        .env("LD_LIBRARY_PATH", library_path())
        .env("LLAMA_CACHE", home.path("cache"))
        .env("LLAMA_CUDA_EMU", settings)
        .env_remove("LLAMA_CUDA_EMU_REPORT");
    ended(command)
}

/// True if the emulated driver is to be left out; else it must be there.
fn is_left_out(home: &Home) -> bool {
    if std::env::var("LLAMA_CUDA").is_ok_and(|value| value == "skip") {
        eprintln!("left out, since LLAMA_CUDA=skip");
        return true;
    }
    let listed = llama(home, "", &["devices"]);
    assert!(listed.succeeds().contains(EMULATED), "{}", listed.out);
    false
}

#[test]
fn devices_are_listed_with_what_is_missing() {
    let home = Home::new();
    let listed = ended(home.llama(&["devices"]));
    let listed = listed.succeeds();
    assert!(listed.starts_with("cpu"), "{listed}");
    assert!(
        listed.contains("cuda0") || listed.contains("not usable: cuda: "),
        "{listed}"
    );
    let json = ended(home.llama(&["devices", "--json"]));
    assert!(json.succeeds().contains("\"flaws\""), "{}", json.out);
}

#[test]
fn a_card_that_cannot_be_used_is_an_error_that_says_why() {
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
        ("driver=11000", "the driver supports CUDA 11.0, and 11.2 is needed"),
        ("devices=0", "cuInit"),
        ("sm=75", "compute capability 7.5"),
        ("busy=1", "CUDA_ERROR_DEVICE_UNAVAILABLE"),
        ("used=8G", "no layer fits into what is free of cuda0"),
        ("fail_alloc=2", "CUDA_ERROR_OUT_OF_MEMORY"),
        ("fail_launch=3", "cuLaunchKernel"),
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

/// A device that is in nobody's command is used if it can be: otherwise the CPU answers.
#[test]
fn where_no_device_is_named_the_cpu_answers_instead_of_a_card_that_cannot_be_used() {
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
    for settings in ["driver=11000", "devices=0", "sm=75", "busy=1", "used=8G"] {
        let ended = run(settings, &[]);
        assert_eq!(ended.succeeds(), on_cpu, "{settings}: {}", ended.err);
        assert!(!ended.err.contains("leak"), "{settings}: {}", ended.err);
    }
}

/// A driver that lacks a function is told with the function's name, and nothing panics.
#[test]
fn a_driver_that_lacks_a_function_is_named_with_it() {
    let home = Home::new();
    if is_left_out(&home) {
        return;
    }
    let folder = library_path()
        .split(':')
        .next()
        .expect("the driver's folder comes first");
    let mut driver = std::fs::read(std::path::Path::new(folder).join("libcuda.so")).expect("the driver is there");
    let name = b"\0cuGraphLaunch\0";
    let places: Vec<usize> = (0..driver.len() - name.len())
        .filter(|&i| driver[i..].starts_with(name))
        .collect();
    assert!(!places.is_empty(), "the driver has this function");
    places.iter().for_each(|&i| driver[i + 1] = b'_');
    std::fs::write(home.path("libcuda.so"), driver).expect("there is room");
    let path = format!("{}:{}", home.path("").display(), library_path());
    let mut command = home.llama(&["devices"]);
    command.env("LD_LIBRARY_PATH", path);
    let listed = ended(command);
    let told = "not usable: cuda: libcuda is too old: it has no cuGraphLaunch";
    assert!(listed.succeeds().contains(told), "{}", listed.out);
}

/// A device that is lost while tokens are generated ends the answer with an error; what was generated before is there.
#[test]
fn a_card_that_is_lost_amid_an_answer_is_an_error() {
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
    // Kernels that are launched one by one, and then those of recorded graphs.
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
    assert!(began > 3, "{began} answers had begun");
}

/// A card that has room for some layers gets those, with their caches and intermediate results; a plan says the same.
#[test]
fn as_many_layers_go_to_a_card_as_fit() {
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
    let told = format!("{n} of 3 layers are on devices, as many as fit");
    assert!(
        some.err.contains(&told) && !all.err.contains("layers are on"),
        "{}{}",
        some.err,
        all.err
    );
    let none = run("memory=4M", &[]);
    none.fails_saying(&["no layer fits into what is free of cuda0"]);
}

#[test]
fn what_fails_at_any_allocation_leaves_nothing_behind() {
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
    panic!("there is no end of allocations");
}

/// Whatever allocation of a load finds no memory: without a device in the command the CPU takes everything, and one warning says so; with one it is an error.
#[test]
fn out_of_memory_amid_a_load_is_left_to_the_cpu_unless_a_device_is_named() {
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
    let told = "everything is in the memory of the CPU instead";
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
            named.err.contains("loading weights: cuda0: "),
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
    // The weights, and the memory that they go through.
    assert!(n > 4, "only {n} allocations were those of a load");
}
