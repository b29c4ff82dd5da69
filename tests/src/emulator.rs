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
    match std::env::var("LLAMA_CUDA").as_deref() {
        Ok("here") => body(),
        Ok("skip") => eprintln!("{name}: left out, since LLAMA_CUDA=skip"),
        Ok(other) => panic!("LLAMA_CUDA is {other:?}, expected `here` or `skip`"),
        Err(_) => in_a_process_of_its_own(name),
    }
}

fn in_a_process_of_its_own(name: &str) {
    let out = run_tests(&["--exact", name, "--include-ignored", "--nocapture"]);
    // A name that is no test's would pass without having run anything.
    assert!(out.contains("1 passed"), "{name} is no test: {out}");
}

/// Runs tests of this program with the emulated driver, those that the harness chooses by `arguments`, and returns what was printed.
///
/// # Panics
/// If the driver or the compiler cannot be had, or a test fails.
pub fn run_tests(arguments: &[&str]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/cuda.sh");
    let program = std::env::current_exe().expect("a test has a program");
    let output = Command::new("bash")
        .args(["-c", r#"set -e; env=$(bash "$0" --env); eval "$env"; exec "$@""#])
        .arg(script)
        .arg(program)
        .args(arguments)
        .env("LLAMA_CUDA", "here")
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
