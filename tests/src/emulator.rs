//! Runs CUDA tests in a separate process with the emulated driver and NVRTC on the library path, so that
//! other tests are not affected. The engine's tests include this file, too.
//!
//! `LLAMA_CUDA=here` runs the tests in the current process: on a real GPU, or in a shell prepared with
//! `tests/cuda.sh --env`. `LLAMA_CUDA=skip` skips them on machines that cannot download NVRTC.

use std::process::Command;

/// Runs the body of a test with the emulated driver. `name` is the full test name, as printed by the harness.
///
/// # Panics
/// If the driver or NVRTC is unavailable, or the body fails.
pub fn with_device(name: &str, body: impl FnOnce()) {
    with_settings(name, "", body);
}

/// Like [`with_device`], with settings of the emulated driver. Real GPUs ignore the settings.
///
/// # Panics
/// If the driver or NVRTC is unavailable, or the body fails.
pub fn with_settings(name: &str, settings: &str, body: impl FnOnce()) {
    match std::env::var("LLAMA_CUDA").as_deref() {
        Ok("here") => body(),
        Ok("skip") => eprintln!("{name}: skipped because of LLAMA_CUDA=skip"),
        Ok(other) => panic!("LLAMA_CUDA: expected `here` or `skip`, found {other:?}"),
        Err(_) => run_in_subprocess(name, settings),
    }
}

/// Like [`with_device`], without NVRTC. If `LLAMA_CUDA` is set, NVRTC is present, so the body is skipped.
///
/// # Panics
/// If the driver is unavailable, or the body fails.
pub fn without_compiler(name: &str, body: impl FnOnce()) {
    match std::env::var("LLAMA_CUDA").as_deref() {
        Ok("alone") => body(),
        Ok(_) => eprintln!("{name}: skipped because LLAMA_CUDA is set"),
        Err(_) => {
            // LD_LIBRARY_PATH starts with the driver's directory.
            let arguments = ["--exact", name, "--include-ignored", "--nocapture"];
            let out = run_in("export LD_LIBRARY_PATH=${LD_LIBRARY_PATH%%:*}", "alone", &arguments);
            assert!(out.contains("1 passed"), "unknown test {name}: {out}");
        }
    }
}

fn run_in_subprocess(name: &str, settings: &str) {
    let change = match settings {
        "" => "true".to_owned(),
        _ => format!("export LLAMA_CUDA_EMU={settings}"),
    };
    let out = run_in(&change, "here", &["--exact", name, "--include-ignored", "--nocapture"]);
    // An unknown test name would pass without running anything.
    assert!(out.contains("1 passed"), "unknown test {name}: {out}");
}

/// Runs the tests selected by `arguments` with the emulated driver and returns their output.
///
/// # Panics
/// If the driver or NVRTC is unavailable, or a test fails.
pub fn run_tests(arguments: &[&str]) -> String {
    run_in("true", "here", arguments)
}

/// Runs tests with the emulated driver. `change` is a shell command that modifies the environment, and
/// `value` is the value of `LLAMA_CUDA`.
fn run_in(change: &str, value: &str, arguments: &[&str]) -> String {
    let script = crate::root::root().join("tests/cuda.sh");
    let program = std::env::current_exe().expect("the test executable has a path");
    let output = Command::new("bash")
        .args([
            "-c",
            r#"set -e; env=$(bash "$0" --env); eval "$env"; eval "$1"; shift; exec "$@""#,
        ])
        .arg(script)
        .arg(change)
        .arg(program)
        .args(arguments)
        .env("LLAMA_CUDA", value)
        .output()
        .expect("bash runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(
        output.status.success(),
        "{out}{err}\n(set LLAMA_CUDA=skip if NVRTC cannot be downloaded)"
    );
    out
}
