//! Runs the op tests, and all other tests of every device, on the emulated CUDA driver.

use crate::emulator::{run_tests, run_tests_with, with_device};

/// Test modules that iterate over all devices.
const SUITES: [&str; 4] = ["ops::", "soundness::", "scheduler_devices::", "profile::"];

/// Tests of attention, which take as long as all others.
const ATTENTION: &str = "ops::attention";

/// Runs several tests concurrently in one process, so that streams, memory, and kernels of many backends
/// share a device.
#[test]
fn all_ops_compute_on_the_emulated_device() {
    let name = "cuda::all_ops_compute_on_the_emulated_device";
    match std::env::var("LLAMA_CUDA") {
        // The test harness of this process already runs the suites.
        Ok(_) => with_device(name, || {}),
        Err(_) => {
            let out = run_tests(&[&SUITES[..], &["--skip", ATTENTION]].concat());
            assert!(!out.contains(" 0 passed"), "no tests matched the suites: {out}");
        }
    }
}

/// A device runs one kernel at a time, so a second process uses a second core.
#[test]
fn attention_computes_on_the_emulated_device() {
    let name = "cuda::attention_computes_on_the_emulated_device";
    match std::env::var("LLAMA_CUDA") {
        Ok(_) => with_device(name, || {}),
        Err(_) => {
            let out = run_tests(&[ATTENTION]);
            assert!(!out.contains(" 0 passed"), "no tests matched the suite: {out}");
        }
    }
}

/// GPUs of compute capability 7.5 copy synchronously and multiply matrix fragments of other shapes.
#[test]
#[ignore = "runs the op suite a second time"]
fn all_ops_compute_on_an_emulated_device_of_compute_capability_7_5() {
    let name = "cuda::all_ops_compute_on_an_emulated_device_of_compute_capability_7_5";
    match std::env::var("LLAMA_CUDA") {
        Ok(_) => with_device(name, || {}),
        Err(_) => {
            let out = run_tests_with("sm=75", &SUITES);
            assert!(!out.contains(" 0 passed"), "no tests matched the suites: {out}");
        }
    }
}

/// GPUs with `wgmma` have different kernels for large tiles than other GPUs.
#[test]
fn tiles_compute_on_an_emulated_device_without_wgmma() {
    let name = "cuda::tiles_compute_on_an_emulated_device_without_wgmma";
    match std::env::var("LLAMA_CUDA") {
        Ok(_) => with_device(name, || {}),
        Err(_) => {
            let out = run_tests_with("sm=89", &["ops::tiled_matmuls", "ops::expert_matmuls"]);
            assert!(out.contains(" 2 passed"), "no tests matched the names: {out}");
        }
    }
}
