//! Runs CUDA tests in a separate process with the emulated driver and NVRTC on the library path, so that other tests
//! are not affected. The engine's tests also include this file.
//!
//! `LLAMA_CUDA=here` runs the tests in the current process: on a real GPU, or in a shell prepared with
//! `tests/cuda.sh --env`. `LLAMA_CUDA=skip` skips them on machines that cannot download NVRTC.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Runs the body of a test with the emulated driver. `name` is the full test name, as printed by the harness.
///
/// # Panics
/// Panics if the driver or NVRTC is unavailable, or the body fails.
pub fn with_device(name: &str, body: impl FnOnce()) {
    with_settings(name, "", body);
}

/// Like [`with_device`], with settings of the emulated driver. Real GPUs ignore the settings.
///
/// # Panics
/// Panics if the driver or NVRTC is unavailable, or the body fails.
pub fn with_settings(name: &str, settings: &str, body: impl FnOnce()) {
    match std::env::var("LLAMA_CUDA").as_deref() {
        Ok("here") => body(),
        Ok("skip") => eprintln!("{name}: skipped because of LLAMA_CUDA=skip"),
        Ok(other) => panic!("LLAMA_CUDA: expected `here` or `skip`, found {other:?}"),
        Err(_) => run_in_subprocess(name, settings),
    }
}

/// Variable with the path of an archive of kernels that a test writes and reads.
const ARCHIVE: &str = "LLAMA_TEST_ARCHIVE";

/// Calls `write` with the emulated driver and NVRTC, and then `read` without NVRTC. Both get the path of the same
/// file. If `LLAMA_CUDA` is set, the test is skipped, since NVRTC may be present.
///
/// # Panics
/// Panics if the driver or NVRTC is unavailable, or a body fails.
pub fn with_archive(name: &str, write: impl FnOnce(&PathBuf), read: impl FnOnce(&PathBuf)) {
    let archive = std::env::var_os(ARCHIVE).map(PathBuf::from);
    match (std::env::var("LLAMA_CUDA").as_deref(), archive) {
        (Ok("here"), Some(archive)) => write(&archive),
        (Ok("alone"), Some(archive)) => read(&archive),
        (Ok(_), _) => eprintln!("{name}: skipped because LLAMA_CUDA is set"),
        (Err(_), _) => {
            let archive = std::env::temp_dir().join(format!("llama-kernels-{}", std::process::id()));
            let export = format!("export {ARCHIVE}={}", archive.display());
            // LD_LIBRARY_PATH starts with the driver's directory.
            let without_nvrtc = format!("{export} LD_LIBRARY_PATH=${{LD_LIBRARY_PATH%%:*}}");
            for (change, value) in [(export, "here"), (without_nvrtc, "alone")] {
                let arguments = ["--exact", name, "--include-ignored", "--nocapture"];
                let out = run_in(&change, value, &arguments);
                assert!(out.contains("1 passed"), "unknown test {name}: {out}");
            }
            // A file that stays behind is deleted with the temporary directory.
            let _ = std::fs::remove_file(archive);
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
/// Panics if the driver or NVRTC is unavailable, or a test fails.
pub fn run_tests(arguments: &[&str]) -> String {
    run_in("true", "here", arguments)
}

/// Like [`run_tests`], with settings of the emulated driver.
///
/// # Panics
/// Panics if the driver or NVRTC is unavailable, or a test fails.
pub fn run_tests_with(settings: &str, arguments: &[&str]) -> String {
    run_in(&format!("export LLAMA_CUDA_EMU={settings}"), "here", arguments)
}

/// Runs tests with the emulated driver. `change` is a shell command that modifies the environment, and
/// `value` is the value of `LLAMA_CUDA`.
fn run_in(change: &str, value: &str, arguments: &[&str]) -> String {
    let program = std::env::current_exe().expect("the test executable has a path");
    let output = Command::new("bash")
        .args(["-c", r#"set -e; eval "$0"; eval "$1"; shift; exec "$@""#])
        .arg(environment())
        .arg(change)
        .arg(program)
        .args(arguments)
        .env("LLAMA_CUDA", value)
        .output()
        .expect("bash runs");
    stdout_of(&output)
}

/// Returns the shell commands that set up the emulated driver and NVRTC. The script builds the driver, so it runs once
/// per process.
fn environment() -> &'static str {
    static COMMANDS: OnceLock<String> = OnceLock::new();
    COMMANDS.get_or_init(|| {
        let output = Command::new("bash")
            .arg(crate::root::root().join("tests/cuda.sh"))
            .arg("--env")
            .output()
            .expect("bash runs");
        stdout_of(&output)
    })
}

fn stdout_of(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(
        output.status.success(),
        "{out}{err}\n(set LLAMA_CUDA=skip if NVRTC cannot be downloaded)"
    );
    out
}
