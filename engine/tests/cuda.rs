//! Every op, and whatever else is tested on all devices, on the emulated CUDA driver.

use crate::emulator::{run_tests, with_device};

/// Where tests run that go through all devices.
const SUITES: [&str; 4] = ["ops::", "soundness::", "scheduler_devices::", "profile::"];

/// Several tests at a time in one process: that is how streams, memory and kernels of many backends meet on a device.
#[test]
fn all_ops_compute_on_the_emulated_device() {
    let name = "cuda::all_ops_compute_on_the_emulated_device";
    match std::env::var("LLAMA_CUDA") {
        // The tests are in this very run.
        Ok(_) => with_device(name, || {}),
        Err(_) => {
            let out = run_tests(&SUITES);
            assert!(!out.contains(" 0 passed"), "there are no such tests: {out}");
        }
    }
}
