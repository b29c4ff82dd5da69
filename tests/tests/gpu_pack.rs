//! The pack for machines with a GPU (`tests/gpu`): a rehearsal on the emulated driver, and phases that fail.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tests::emulator::with_device;

fn root() -> PathBuf {
    tests::root()
}

/// Returns a script of the repository in `root` as a command, with the directories of the pack in `directory`.
fn command_in(root: &Path, directory: &Path, script: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("bash");
    command.arg(root.join("tests/gpu").join(script)).args(arguments);
    // The programs must find the files of the repository that the script belongs to.
    command.current_dir(directory);
    command
        .env("LLAMA_GPU_PACK", directory.join("pack"))
        .env("LLAMA_GPU_WORK", directory.join("work"))
        .env("OUT", directory.join("out"))
        .env("LLAMA_GPU_REHEARSAL", "1");
    command
}

fn command(directory: &Path, script: &str, arguments: &[&str]) -> Command {
    command_in(&root(), directory, script, arguments)
}

/// Copies the files of the repository, as they are sent to a machine with a GPU.
fn copy_repository(to: &Path) {
    let mut copy = Command::new("bash");
    let script = "git ls-files -z --cached --others --exclude-standard | tar --null -T - -cf - | tar -xf - -C \"$1\"";
    copy.args(["-c", script, "copy"]).arg(to).current_dir(root());
    out(copy);
}

/// Returns the output of a command that succeeded.
fn out(mut command: Command) -> String {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output();
    let output = output.unwrap_or_else(|e| panic!("this test needs `{program}` in PATH: {e}"));
    let Output { status, stdout, stderr } = output;
    let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{out}{err}");
    out.into_owned()
}

fn report(directory: &Path) -> serde_json::Value {
    let report = std::fs::read(directory.join("out/report.json")).expect("a report was written");
    serde_json::from_slice(&report).expect("the report is JSON")
}

/// Returns the status of each phase in a report.
fn phases(report: &serde_json::Value) -> Vec<(&str, u64)> {
    let phases = report["phases"].as_array().expect("a list").iter();
    let status = |phase: &serde_json::Value| phase["status"].as_u64().expect("a number");
    phases
        .map(|phase| (phase["name"].as_str().expect("a name"), status(phase)))
        .collect()
}

/// Writes an executable shell script.
fn write_program(directory: &Path, name: &str, script: &str) {
    std::fs::create_dir_all(directory).expect("the temporary directory is writable");
    let path = directory.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{script}")).expect("the temporary directory is writable");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(path, mode).expect("the temporary directory is writable");
}

/// Writes a shell script as a program of a call.
fn pack_program(directory: &Path, call: &str, name: &str, script: &str) {
    let pack = directory.join("pack").join(call);
    write_program(&pack, name, script);
    let packed = Command::new("xz").arg(pack.join(name)).status().expect("xz runs");
    assert!(packed.success());
}

/// Returns the command of call 1. `PATH` lacks the tools of the CUDA toolkit, and an empty file in `LD_LIBRARY_PATH`
/// replaces NVRTC.
fn first_call(directory: &Path, limit: &str) -> Command {
    let mut run = command(directory, "run.sh", &["1"]);
    run.env("LLAMA_GPU_LIMIT", limit).env("PATH", "/usr/bin:/bin");
    std::fs::write(directory.join("libnvrtc.so.12"), "").expect("the temporary directory is writable");
    run.env("LD_LIBRARY_PATH", directory);
    run
}

/// A program that hangs runs until the limit of its phase, and a program that fails ends only its own phase.
#[test]
fn failed_and_hung_phases_do_not_stop_others() {
    let directory = tempfile::tempdir().expect("the temporary directory is writable");
    let program = "case $1 in devices) exit 3 ;; synth) for file; do :; done; : > \"$file\" ;; *) sleep 1000 ;; esac\n";
    pack_program(directory.path(), "1", "llama", program);
    let printed = out(first_call(directory.path(), "2"));
    let report = report(directory.path());
    let phases = phases(&report);
    assert_eq!(phases[0], ("probe", 3), "{printed}");
    for name in ["smoke", "fixtures", "first-speed"] {
        assert!(phases.contains(&(name, 124)), "{name}: {phases:?}");
        assert!(
            printed.contains(&format!("FAILED {name}: ran past its limit")),
            "{printed}"
        );
    }
    assert!(
        report["left_out"]
            .to_string()
            .contains("ops: the pack has no engine-tests")
    );
    assert!(printed.lines().count() < 80, "{printed}");
    assert!(directory.path().join("out/logs-1.tar.gz").exists());
}

/// The summary has the reason of each failure, sorted by name, and each recorded model and failed test runs in a
/// separate process.
#[test]
fn failures_are_reported_with_their_reasons() {
    let directory = tempfile::tempdir().expect("the temporary directory is writable");
    let program = r#"case "$1 $3" in
"devices ") echo "unavailable: cuda: the driver is too old" ;;
"arch llama-dense") sleep 1; echo "llama-dense - FAIL cuda0: cannot load kernel scatter (scatter.cu)"; exit 1 ;;
arch*) kill -SEGV $$ ;;
*) echo "error: the disk is full" >&2; exit 1 ;;
esac
"#;
    pack_program(directory.path(), "1", "llama", program);
    let tests = r#"case "$*" in
*--exact*) echo "test $3 ... ok" ;;
*) echo "test profile::a ... FAILED"; echo "panicked at a.rs:1:1:"; echo "cuda0: cuLaunchKernel"; exit 101 ;;
esac
"#;
    pack_program(directory.path(), "1", "engine-tests", tests);
    let printed = out(first_call(directory.path(), "20"));
    let report = report(directory.path());
    assert!(phases(&report).contains(&("ops-alone", 0)), "{printed}");
    for line in [
        "GPU: unavailable: cuda: the driver is too old",
        "fixtures: 0 passed, 2 failed llama-dense -, llama-moe -",
        "    1 x cuda0: cannot load kernel scatter (scatter.cu)",
        "    1 x the process ended with status 139",
        "ops: 0 passed, 1 failed profile::a",
        "    1 x cuda0: cuLaunchKernel",
        "ops-alone: 1 passed, 0 failed",
    ] {
        assert!(
            printed.lines().any(|own| own.starts_with(line)),
            "{line:?} is missing: {printed}"
        );
    }
    // A model that cannot be written ends the phases that need the model.
    let first = printed
        .lines()
        .find(|line| line.starts_with("FAILED first-speed: failed with status 1"));
    let reason = "tiny-q4_k_m.gguf was not written: error: the disk is full";
    assert!(first.is_some_and(|line| line.ends_with(reason)), "{printed}");
}

/// Runs all calls with the programs that the pack contains, in a copy of the repository at another path. `nvcc`,
/// `compute-sanitizer`, and `ncu` may be missing.
#[test]
#[ignore = "builds the pack and runs all of its calls on the GPU"]
fn every_pack_call_succeeds() {
    with_device("gpu_pack::every_pack_call_succeeds", || {
        let directory = tempfile::tempdir().expect("the temporary directory is writable");
        let sizes = out(command(directory.path(), "pack.sh", &[]));
        eprintln!("{sizes}");
        assert_eq!(
            sizes.lines().filter(|line| line.starts_with("call ")).count(),
            3,
            "{sizes}"
        );
        let copy = directory.path().join("elsewhere");
        std::fs::create_dir(&copy).expect("the temporary directory is writable");
        copy_repository(&copy);
        for call in ["1", "2", "3"] {
            eprintln!("{}", out(command_in(&copy, directory.path(), "run.sh", &[call])));
        }
        let has = |file: &str| directory.path().join("pack").join(file).exists();
        let optional = [
            ("archive", has("1/has-archive")),
            ("precisions", has("3/model.gguf.xz")),
        ];
        check_report(&report(directory.path()), &optional);
        // A kernel that fails is named, and ends only its own process.
        let mut failing = command_in(&copy, directory.path(), "run.sh", &["1"]);
        failing.env("LLAMA_CUDA_EMU", "fault_at=5");
        let printed = out(failing);
        for text in [
            "fixtures: 0 passed, 2 failed",
            "x cuda0: cuLaunchKernelEx: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered, at the launch of ",
            "FAILED first-speed: failed with status 1",
        ] {
            assert!(printed.contains(text), "{text:?} is missing: {printed}");
        }
    });
}

/// Checks the report of a rehearsal. `optional` phases run if the pack has their files.
fn check_report(report: &serde_json::Value, optional: &[(&str, bool)]) {
    let phases = phases(report);
    let mut expected = vec![
        "probe",
        "smoke",
        "fixtures",
        "ops",
        "first-speed",
        "tests",
        "f16-sums",
        "times-tiny-q4_k_m",
        "speed-tiny-q4_k_m",
        "speed-135m-q4_k_m",
        "in-order",
        "parallel",
        "experts",
    ];
    expected.extend(optional.iter().filter(|(_, has)| *has).map(|(name, _)| name));
    for name in expected {
        assert!(phases.contains(&(name, 0)), "{name}: {phases:?}");
    }
    let correct = &report["correctness"];
    for name in ["smoke", "fixtures", "ops", "tests", "f16-sums"] {
        assert!(
            correct[name]["passed"].as_u64().is_some_and(|n| n > 0),
            "{name}: {correct}"
        );
    }
    assert_eq!(correct["fixtures"]["failed"], serde_json::json!([]));
    let kernels = report["kernels"].as_array().expect("a list");
    assert!(kernels.iter().any(|kernel| kernel["gb_s"].is_number()), "{kernels:?}");
    let precisions = report["precisions"].as_array().map_or(&[][..], Vec::as_slice);
    assert_eq!(
        precisions.len(),
        if phases.contains(&("precisions", 0)) { 4 } else { 0 }
    );
    for row in precisions {
        let limit = if row["logits"] == "cuda0-exact" { 1e-9 } else { 0.05 };
        assert!(row["kl"].as_f64().is_some_and(|kl| kl < limit), "{row}");
    }
}

/// Without NVRTC, phases that compile kernels are skipped, and all other phases run.
#[test]
fn phases_without_compiler_are_skipped() {
    let directory = tempfile::tempdir().expect("the temporary directory is writable");
    // The program reports the library path, on which NVRTC is hidden while the archive is measured.
    let program =
        "case $1 in synth) for file; do :; done; : > \"$file\" ;; bench) echo \"${LD_LIBRARY_PATH%%:*}\" ;; esac\n";
    pack_program(directory.path(), "1", "llama", program);
    std::fs::write(directory.path().join("pack/1/has-archive"), "").expect("the temporary directory is writable");
    let mut run = command(directory.path(), "run.sh", &["1"]);
    run.env("LLAMA_GPU_LIMIT", "5").env("PATH", "/usr/bin:/bin");
    run.env("LD_LIBRARY_PATH", "/nowhere");
    let printed = out(run);
    let report = report(directory.path());
    let (phases, left_out) = (phases(&report), report["left_out"].to_string());
    for name in ["smoke", "fixtures"] {
        let is_left_out = left_out.contains(&format!("{name}: NVRTC is not installed"));
        // Some machines have NVRTC among their system libraries.
        assert!(
            is_left_out || phases.iter().any(|(phase, _)| *phase == name),
            "{printed}"
        );
    }
    let work = directory.path().join("work");
    let first = std::fs::read_to_string(work.join("logs-1/bench-first.json")).expect("the phase wrote its output");
    assert_eq!(first.trim(), "/nowhere", "{printed}");
    let archive = std::fs::read_to_string(work.join("logs-1/bench-archive.json")).expect("the phase wrote its output");
    let hidden = work.join("no-compiler");
    assert_eq!(Path::new(archive.trim()), hidden, "{printed}");
    assert!(hidden.join("libnvrtc.so").exists() && hidden.join("libnvrtc.so.13").exists());
}

/// Models are measured alternately with the benchmarks of another engine. Its kernels run on GPUs of compute
/// capability 9.0 only.
#[test]
fn models_are_measured_in_turn_with_other_engine() {
    let directory = tempfile::tempdir().expect("the temporary directory is writable");
    let at = directory.path();
    // The program prints the row of the command that it compares with, or a row without a ratio.
    let program = r#"
if [ "$1" = synth ]; then
    for file; do :; done
    : > "$file"
    exit
fi
row="{\"model_filename\": \"$3\", \"n_prompt\": 8, \"n_gen\": 0, \"n_depth\": 0, \"n_parallel\": 1, \"median_ts\": 3"
for word; do
    [ "$last" = --compare ] && row="$row, \"median_ratio\": $(sh -c "$word")"
    last=$word
done
echo "[$row}]"
"#;
    pack_program(at, "3", "llama", program);
    for (name, ratio) in [("llama-bench", "1.5"), ("llama-batched-bench", "2.5")] {
        let script = format!("[ -e \"$2\" ] && case \"$*\" in *\"-ngl 99 -fa on\"*) echo {ratio} ;; esac\n");
        write_program(&at.join("peer"), name, &script);
    }
    let mut archive = Command::new("tar");
    archive.arg("-cJf").arg(at.join("pack/3/peer.tar.xz"));
    archive.arg("-C").arg(at.join("peer")).arg(".");
    out(archive);
    let run = |capability: &str| {
        write_program(&at.join("bin"), "nvidia-smi", &format!("echo {capability}\n"));
        let mut run = command(at, "run.sh", &["3"]);
        run.env("LLAMA_GPU_LIMIT", "20");
        run.env("PATH", format!("{}:/usr/bin:/bin", at.join("bin").display()));
        let _ = std::fs::remove_dir_all(at.join("work"));
        std::fs::create_dir(at.join("work")).expect("the temporary directory is writable");
        (out(run), report(at))
    };
    let (printed, report) = run("9.0");
    for name in ["peer-tiny-q4_k_m", "peer-135m-q4_k_m", "peer-parallel"] {
        assert!(phases(&report).contains(&(name, 0)), "{name}: {printed}");
    }
    // Tests that were measured alternately are printed once.
    let of_tiny = printed.lines().filter(|line| line.starts_with("tiny-q4_k_m pp8"));
    assert_eq!(
        of_tiny.collect::<Vec<_>>(),
        [
            "tiny-q4_k_m pp8 depth 0 x1: 3.0 tok/s, 2.50 of the other engine",
            "tiny-q4_k_m pp8 depth 0 x1: 3.0 tok/s, 1.50 of the other engine",
        ],
        "{printed}"
    );
    write_program(&at.join("bin"), "ldd", "echo 'libcudart.so.13 => not found'\n");
    let (printed, report) = run("9.0");
    let reason = "peer: the other engine needs libcudart.so.13";
    assert!(report["left_out"].to_string().contains(reason), "{printed}");
    let (printed, report) = run("12.0");
    let reason = "peer: the machine code of the other engine is for compute capability 9.0";
    assert!(report["left_out"].to_string().contains(reason), "{printed}");
    assert!(
        !printed.lines().any(|line| line.ends_with("of the other engine")),
        "{printed}"
    );
}

/// Divergence of known distributions: 1/4 and 3/4 from 1/2 and 1/2.
#[test]
fn divergence_of_known_distributions_is_exact() {
    let directory = tempfile::tempdir().expect("the temporary directory is writable");
    let write = |name: &str, logits: [f32; 2]| {
        let path = directory.path().join(name);
        let words = [1u32, 2, 0].into_iter().chain(logits.map(f32::to_bits));
        let bytes: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
        std::fs::write(&path, bytes).expect("the temporary directory is writable");
        path
    };
    let want = write("want.logits", [0.0, 3f32.ln()]);
    let other = write("other.logits", [1.0, 1.0]);
    let mut script = Command::new("python3");
    script.arg("-B").arg(root().join("tests/gpu/divergence.py"));
    script.args([&want, &other, &want]);
    let printed = out(script);
    let rows: Vec<serde_json::Value> = (printed.lines())
        .map(|line| serde_json::from_str(line).expect("each line is JSON"))
        .collect();
    let kl = |row: usize| rows[row]["kl"].as_f64().expect("a number");
    assert!(
        (kl(0) - (0.25 * 0.5f64.ln() + 0.75 * 1.5f64.ln())).abs() < 1e-7,
        "{printed}"
    );
    assert_eq!((kl(1), rows[1]["same_top"].as_f64()), (0.0, Some(1.0)), "{printed}");
    assert_eq!(rows[0]["same_top"], 0.0, "{printed}");
}

/// The generator of `docs/benchmarks.md` takes its tables from a report.
#[test]
fn report_becomes_tables_of_the_benchmarks() {
    let directory = tempfile::tempdir().expect("the temporary directory is writable");
    let kernel = serde_json::json!({
        "model": "8b-q4_k_m", "kernel": "mul_vec_int (mul_vec_int.cu)", "launches": 64, "us_median": 12.5, "us_min": 12.0,
        "us_total": 800.0, "gb_s": 2800.0, "tflops": null,
    });
    let speed = |n_prompt: u32, n_gen: u32, speed: f64| {
        serde_json::json!({
            "model": "8b-q4_k_m", "n_prompt": n_prompt, "n_gen": n_gen, "n_depth": 256, "n_parallel": 1, "median_ts": speed,
            "median_ratio": 1.25,
        })
    };
    let gpu = serde_json::json!({"name": "NVIDIA X", "driver_version": "580.1", "toolkit": "13.0"});
    let calls = [
        serde_json::json!({"date": "2026-12-01", "gpu": gpu, "phases": [], "left_out": [], "kernels": [kernel],
            "ceilings": [{"copy_bytes": 1024, "tb_s": 3.0}]}),
        serde_json::json!({"date": "2026-12-01", "phases": [], "left_out": [], "bench": [speed(512, 0, 9000.0), speed(0, 64, 350.04)]}),
    ];
    let path = |name: &str| directory.path().join(name);
    for (i, call) in calls.iter().enumerate() {
        std::fs::write(path(&format!("{i}.json")), call.to_string()).expect("the temporary directory is writable");
    }
    let mut merge = Command::new("python3");
    merge.arg("-B").arg(root().join("tests/gpu/report.py")).arg("--merge");
    merge.args([path("all.json"), path("0.json"), path("1.json")]);
    let summary = out(merge);
    assert!(
        summary.contains("GPU: NVIDIA X, driver 580.1, toolkit 13.0"),
        "{summary}"
    );
    assert!(
        summary.contains("8b-q4_k_m pp512 depth 256 x1: 9000.0 tok/s, 1.25 of the other engine"),
        "{summary}"
    );
    assert!(summary.contains("2800 GB/s  93 %"), "{summary}");
    let mut tables = Command::new("python3");
    let script = "import pathlib, sys; import documents; print(documents.gpus(pathlib.Path(sys.argv[1])))";
    tables.args(["-B", "-c", script]).arg(path("all.json"));
    let tables = out({
        tables.current_dir(root().join("tests/tools"));
        tables
    });
    for line in [
        "### NVIDIA X",
        "2026-12-01, driver 580.1, CUDA 13.0. Measured limits: copy_bytes 1024, tb_s 3.",
        "| 8b-q4_k_m | prompt of 512 | 256 | 1 | 9000.0 | 1.25 |",
        "| 8b-q4_k_m | decode of 64 | 256 | 1 | 350.0 | 1.25 |",
        "| 8b-q4_k_m | mul_vec_int (mul_vec_int.cu) | 64 | 12.5 | 2800.0 | - |",
    ] {
        assert!(tables.lines().any(|own| own == line), "{line:?} is missing: {tables}");
    }
}
