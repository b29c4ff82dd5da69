//! Tests of the CUDA backend set themselves up (those of the engine include this file): each runs in a process of its own, with the emulated driver
//! and the real compiler of kernels on the loader's path, so that all other tests see the machine as it is.
//!
//! `LLAMA_CUDA=here` runs them in the process as it is: with a card, or in a shell that has what `tests/cuda.sh --env` prints. `LLAMA_CUDA=skip` leaves
//! them out where the compiler cannot be fetched.

use std::path::Path;
use std::process::Command;

/// Runs a test's body with the emulated driver. `name` is the test's whole name, as the harness prints it.
///
/// # Panics
/// If the driver or the compiler cannot be had, or the body fails.
pub fn with_device(name: &str, body: impl FnOnce()) {
    with_settings(name, "", body);
}

/// As [`with_device`], with these settings of the emulated driver, which a session on a card has none of.
///
/// # Panics
/// If the driver or the compiler cannot be had, or the body fails.
pub fn with_settings(name: &str, settings: &str, body: impl FnOnce()) {
    match std::env::var("LLAMA_CUDA").as_deref() {
        Ok("here") => body(),
        Ok("skip") => eprintln!("{name}: left out, since LLAMA_CUDA=skip"),
        Ok(other) => panic!("LLAMA_CUDA is {other:?}, expected `here` or `skip`"),
        Err(_) => in_a_process_of_its_own(name, settings),
    }
}

/// As [`with_device`], without the compiler of kernels. A shell that has been set up has it, so that the body is left out there.
///
/// # Panics
/// If the driver cannot be had, or the body fails.
pub fn without_compiler(name: &str, body: impl FnOnce()) {
    match std::env::var("LLAMA_CUDA").as_deref() {
        Ok("alone") => body(),
        Ok(_) => eprintln!("{name}: left out, since LLAMA_CUDA is set"),
        Err(_) => {
            // The driver's folder comes first.
            let arguments = ["--exact", name, "--include-ignored", "--nocapture"];
            let out = run_in("export LD_LIBRARY_PATH=${LD_LIBRARY_PATH%%:*}", "alone", &arguments);
            assert!(out.contains("1 passed"), "{name} is no test: {out}");
        }
    }
}

fn in_a_process_of_its_own(name: &str, settings: &str) {
    let change = match settings {
        "" => "true".to_owned(),
        _ => format!("export LLAMA_CUDA_EMU={settings}"),
    };
    let out = run_in(&change, "here", &["--exact", name, "--include-ignored", "--nocapture"]);
    // A name that is no test's would pass without having run anything.
    assert!(out.contains("1 passed"), "{name} is no test: {out}");
}

/// Runs tests of this program with the emulated driver, those that the harness chooses by `arguments`, and returns what was printed.
///
/// # Panics
/// If the driver or the compiler cannot be had, or a test fails.
pub fn run_tests(arguments: &[&str]) -> String {
    run_in("true", "here", arguments)
}

/// Runs tests of this program with the emulated driver, after a change to the shell's variables, and with this value of `LLAMA_CUDA`.
fn run_in(change: &str, value: &str, arguments: &[&str]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/cuda.sh");
    let program = std::env::current_exe().expect("a test has a program");
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
        "{out}{err}\n(LLAMA_CUDA=skip leaves this out where NVRTC cannot be fetched)"
    );
    out
}
