//! The driver as programs see it: loaded by name through `cudarc`, with kernels compiled by the real NVRTC.
//!
//! Each test runs in a separate process with the driver on the loader's path. `tests/cuda.sh --setup`
//! downloads NVRTC. Without NVRTC, the tests fail unless `LLAMA_CUDA=skip` is set.

use cudarc::driver::{CudaContext, CudaSlice, DevicePtr, DriverError, LaunchConfig, PushKernelArg, sys};
use cudarc::nvrtc::{CompileOptions, compile_ptx_with_opts};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

#[path = "../../src/root.rs"]
mod root;

const KERNELS: &str = r#"
__device__ int total = 7;
__constant__ float scales[4] = {1.f, 2.f, 3.f, 4.f};
extern "C" __global__ void scale(const float* x, float* y, int n, float by) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * by * scales[i & 3];
}
extern "C" __global__ void sum(const float* x, float* y, int n) {
    __shared__ float parts[32];
    float v = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) v += x[i];
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x == 0) { v = 0; for (int i = 0; i < blockDim.x / 32; i++) v += parts[i]; *y = v; }
}
extern "C" __global__ void beyond(float* y, int n) { y[n] = 1; }
extern "C" __global__ void spend(float* y) { extern __shared__ float s[]; s[threadIdx.x] = 1; __syncthreads(); y[threadIdx.x] = s[threadIdx.x]; }
extern "C" __global__ void functions(const float* x, float* y, int n) {
    int i = threadIdx.x;
    if (i < n) y[i] = expf(x[i]) + sinf(x[i]) + powf(fabsf(x[i]), 1.3f) + tanhf(x[i]) + (float)sin((double)x[i] * 1e6) + logf(fabsf(x[i]));
}
extern "C" __global__ void meaning(int* y) { *y = total * 6; }
"#;

/// Returns the directory of NVRTC; `None` if `LLAMA_CUDA=skip` is set.
fn nvrtc() -> Option<&'static Path> {
    static DIRECTORY: OnceLock<Option<PathBuf>> = OnceLock::new();
    let find = || {
        if std::env::var_os("LLAMA_CUDA").is_some_and(|v| v == "skip") {
            return None;
        }
        let script = root::root().join("tests/cuda.sh");
        let output = Command::new(script)
            .arg("--setup")
            .output()
            .expect("tests/cuda.sh can be executed");
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "cannot set up NVRTC (set LLAMA_CUDA=skip to skip these tests): {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Some(Path::new(stdout.trim()).join("nvidia/cuda_nvrtc/lib"))
    };
    DIRECTORY.get_or_init(find).as_deref()
}

/// Environment variable with the test to run in the child process.
const INSIDE: &str = "LLAMA_CUDA_DRIVER_TEST";

/// Runs a test of this file in a child process with the emulated driver, where it calls `inside`. `settings`
/// is the value of `LLAMA_CUDA_EMU`; `without` lists symbols to remove from the driver. Returns the child's
/// standard error, or `None` in the child.
#[track_caller]
fn run_on_driver(test: &str, settings: &str, without: &[&str], inside: fn()) -> Option<String> {
    if std::env::var_os(INSIDE).is_some() {
        inside();
        return None;
    }
    let Some(nvrtc) = nvrtc() else {
        eprintln!("skipped: LLAMA_CUDA=skip is set");
        return None;
    };
    let own = std::env::current_exe().expect("the test executable has a path");
    let library = own
        .parent()
        .expect("the executable is in a directory")
        .join("libcuda_driver.so");
    let directory = tempfile::tempdir().expect("a temporary directory can be created");
    let bytes = std::fs::read(library).expect("the driver was built with its tests");
    let bytes = cuda_driver::config::without_symbols(&bytes, without);
    std::fs::write(directory.path().join("libcuda.so"), bytes).expect("the directory is writable");
    let output = Command::new(own)
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, test)
        .env(
            "LD_LIBRARY_PATH",
            format!("{}:{}", directory.path().display(), nvrtc.display()),
        )
        .env("LLAMA_CUDA_EMU", settings)
        .output()
        .expect("the test executable can be run");
    let (out, stderr) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success() && out.contains("1 passed"), "{out}{stderr}");
    Some(stderr.into_owned())
}

/// Checks that the output contains all `words`, if the test ran.
#[track_caller]
fn assert_reports(stderr: Option<String>, words: &[&str]) {
    for word in words {
        assert!(
            stderr.as_ref().is_none_or(|stderr| stderr.contains(word)),
            "expected `{word}` in {stderr:?}"
        );
    }
}

fn context() -> Arc<CudaContext> {
    CudaContext::new(0).expect("the emulator has a device")
}

fn module(context: &Arc<CudaContext>) -> Arc<cudarc::driver::CudaModule> {
    let options = CompileOptions {
        arch: Some("compute_80"),
        ..Default::default()
    };
    let ptx = compile_ptx_with_opts(KERNELS, options).expect("the kernels compile");
    context.load_module(ptx).expect("the module loads")
}

/// Computes `2 * x` times the constant scales.
fn scale(context: &Arc<CudaContext>, x: &CudaSlice<f32>, n: usize) -> Result<CudaSlice<f32>, DriverError> {
    let function = module(context).load_function("scale")?;
    let stream = context.default_stream();
    let mut y = stream.alloc_zeros::<f32>(n)?;
    let (count, by) = (n as i32, 2f32);
    let mut launch = stream.launch_builder(&function);
    launch.arg(x).arg(&mut y).arg(&count).arg(&by);
    // SAFETY: the arguments match the kernel's parameters.
    unsafe { launch.launch(LaunchConfig::for_num_elems(n as u32)) }?;
    Ok(y)
}

#[test]
fn kernels_return_expected_results() {
    let stderr = run_on_driver(
        "kernels_return_expected_results",
        "",
        &[],
        inner_kernels_return_expected_results,
    );
    assert!(stderr.is_none_or(|stderr| !stderr.contains("emulated CUDA device")));
}

fn inner_kernels_return_expected_results() {
    let context = context();
    let stream = context.default_stream();
    let x: Vec<f32> = (0..10_000).map(|i| (i % 100) as f32 / 10.0 - 5.05).collect();
    let on_device = stream.clone_htod(&x).expect("the copy succeeds");
    let y = scale(&context, &on_device, x.len()).expect("the launch succeeds");
    let y = stream.clone_dtoh(&y).expect("the copy succeeds");
    let scales = [1.0, 2.0, 3.0, 4.0];
    assert!(y.iter().enumerate().all(|(i, y)| *y == x[i] * 2.0 * scales[i % 4]));

    let module = module(&context);
    let mut total = stream.alloc_zeros::<f32>(1).expect("the allocation succeeds");
    let n = x.len() as i32;
    let sum = module.load_function("sum").expect("the kernel exists");
    let mut launch = stream.launch_builder(&sum);
    launch.arg(&on_device).arg(&mut total).arg(&n);
    // SAFETY: the arguments match the kernel's parameters.
    unsafe {
        launch.launch(LaunchConfig {
            grid_dim: (1, 1, 1),
            block_dim: (256, 1, 1),
            shared_mem_bytes: 0,
        })
    }
    .expect("the launch succeeds");
    let expected: f64 = x.iter().map(|x| f64::from(*x)).sum();
    let found = f64::from(stream.clone_dtoh(&total).expect("the copy succeeds")[0]);
    assert!((found - expected).abs() < 1e-2, "expected {expected}, found {found}");

    let mut y = stream.alloc_zeros::<f32>(100).expect("the allocation succeeds");
    let functions = module.load_function("functions").expect("the kernel exists");
    let n = 100;
    let mut launch = stream.launch_builder(&functions);
    launch.arg(&on_device).arg(&mut y).arg(&n);
    // SAFETY: the arguments match the kernel's parameters.
    unsafe {
        launch.launch(LaunchConfig {
            grid_dim: (1, 1, 1),
            block_dim: (128, 1, 1),
            shared_mem_bytes: 0,
        })
    }
    .expect("the launch succeeds");
    for (y, x) in stream.clone_dtoh(&y).expect("the copy succeeds").iter().zip(&x) {
        let x = f64::from(*x);
        let expected = x.exp() + x.sin() + x.abs().powf(1.3) + x.tanh() + (x * 1e6).sin() + x.abs().ln();
        assert!(
            (f64::from(*y) - expected).abs() < 1e-5 * expected.abs().max(1.0),
            "at {x}: expected {expected}, found {y}"
        );
    }

    let mut result = stream.alloc_zeros::<i32>(1).expect("the allocation succeeds");
    let meaning = module.load_function("meaning").expect("the kernel exists");
    let mut launch = stream.launch_builder(&meaning);
    launch.arg(&mut result);
    // SAFETY: the arguments match the kernel's parameters.
    unsafe {
        launch.launch(LaunchConfig {
            grid_dim: (1, 1, 1),
            block_dim: (1, 1, 1),
            shared_mem_bytes: 0,
        })
    }
    .expect("the launch succeeds");
    assert_eq!(stream.clone_dtoh(&result).expect("the copy succeeds"), [42]);
}

#[test]
fn graph_launch_repeats_captured_work() {
    run_on_driver(
        "graph_launch_repeats_captured_work",
        "",
        &[],
        inner_graph_launch_repeats_captured_work,
    );
}

fn inner_graph_launch_repeats_captured_work() {
    let context = context();
    // `cudarc` would wait for events recorded outside the capture.
    // SAFETY: no memory is freed while in use.
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream().expect("the stream is created");
    let function = module(&context).load_function("scale").expect("the kernel exists");
    let mut x = stream.clone_htod(&[1f32; 64]).expect("the copy succeeds");
    let mut y = stream.alloc_zeros::<f32>(64).expect("the allocation succeeds");
    stream.synchronize().expect("synchronization succeeds");
    stream
        .begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        .expect("the capture starts");
    let (n, by) = (64i32, 3f32);
    let mut launch = stream.launch_builder(&function);
    launch.arg(&x).arg(&mut y).arg(&n).arg(&by);
    // SAFETY: the arguments match the kernel's parameters.
    unsafe { launch.launch(LaunchConfig::for_num_elems(64)) }.expect("the launch is recorded");
    let flags = sys::CUgraphInstantiate_flags_enum::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = stream
        .end_capture(flags)
        .expect("the capture is valid")
        .expect("the capture has work");
    assert_eq!(
        stream.clone_dtoh(&y).expect("the copy succeeds")[..4],
        [0.0; 4],
        "a captured launch does not execute"
    );
    graph.launch().expect("the launch succeeds");
    assert_eq!(
        stream.clone_dtoh(&y).expect("the copy succeeds")[..4],
        [3.0, 6.0, 9.0, 12.0]
    );
    stream.memcpy_htod(&[10f32; 64], &mut x).expect("the copy succeeds");
    graph.launch().expect("the launch succeeds");
    assert_eq!(
        stream.clone_dtoh(&y).expect("the copy succeeds")[..4],
        [30.0, 60.0, 90.0, 120.0]
    );
}

#[test]
fn out_of_bounds_kernel_fails_device() {
    let stderr = run_on_driver(
        "out_of_bounds_kernel_fails_device",
        "",
        &[],
        inner_out_of_bounds_kernel_fails_device,
    );
    assert_reports(stderr, &["kernel `beyond`, PTX line ", "4 bytes at offset 256"]);
}

fn inner_out_of_bounds_kernel_fails_device() {
    let context = context();
    let stream = context.default_stream();
    let function = module(&context).load_function("beyond").expect("the kernel exists");
    let mut y = stream.alloc_zeros::<f32>(64).expect("the allocation succeeds");
    let n = 64i32;
    let mut launch = stream.launch_builder(&function);
    launch.arg(&mut y).arg(&n);
    // SAFETY: the arguments match the kernel's parameters; the out-of-bounds write is the point of the test.
    unsafe {
        launch.launch(LaunchConfig {
            grid_dim: (1, 1, 1),
            block_dim: (1, 1, 1),
            shared_mem_bytes: 0,
        })
    }
    .expect("launches are asynchronous");
    let error = stream.synchronize().expect_err("the kernel writes out of bounds");
    assert_eq!(error.0, sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_eq!(
        stream.clone_dtoh(&y).expect_err("the device has failed").0,
        sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
    );
}

#[test]
fn missing_event_between_streams_is_reported() {
    let stderr = run_on_driver(
        "missing_event_between_streams_is_reported",
        "",
        &[],
        inner_missing_event_between_streams_is_reported,
    );
    assert_reports(
        stderr,
        &["kernel `scale` reads bytes 0..256", "a copy writes in another stream"],
    );
}

fn inner_missing_event_between_streams_is_reported() {
    let context = context();
    // `cudarc` would insert events.
    // SAFETY: no memory is freed while in use.
    unsafe { context.disable_event_tracking() };
    let function = module(&context).load_function("scale").expect("the kernel exists");
    let (compute, upload) = (
        context.new_stream().expect("the stream is created"),
        context.new_stream().expect("the stream is created"),
    );
    let mut x = upload.alloc_zeros::<f32>(64).expect("the allocation succeeds");
    let mut y = compute.alloc_zeros::<f32>(64).expect("the allocation succeeds");
    context.synchronize().expect("synchronization succeeds");
    let mut launch = |wait: bool| {
        upload.memcpy_htod(&[1f32; 64], &mut x).expect("the copy succeeds");
        if wait {
            compute
                .wait(&upload.record_event(None).expect("the event is recorded"))
                .expect("the wait is submitted");
        }
        let (n, by) = (64i32, 3f32);
        let mut launch = compute.launch_builder(&function);
        launch.arg(&x).arg(&mut y).arg(&n).arg(&by);
        // SAFETY: the arguments match the kernel's parameters.
        unsafe { launch.launch(LaunchConfig::for_num_elems(64)) }.expect("launches are asynchronous");
        let result = compute.synchronize();
        context.synchronize().and(result)
    };
    launch(true).expect("an event orders the streams");
    launch(false).expect_err("no event orders the streams");
}

/// A destroyed stream completes its work. Only waiting for the device waits for that work.
#[test]
fn device_sync_waits_for_destroyed_stream() {
    let test = "device_sync_waits_for_destroyed_stream";
    assert_reports(
        run_on_driver(test, "", &[], inner_device_sync_waits_for_destroyed_stream),
        &["a copy reads bytes 0..256", "a fill writes in another stream"],
    );
}

fn inner_device_sync_waits_for_destroyed_stream() {
    let context = context();
    // SAFETY: no memory is freed while in use.
    unsafe { context.disable_event_tracking() };
    let other = context.new_stream().expect("the stream is created");
    let x = other.alloc_zeros::<f32>(64).expect("the allocation succeeds");
    let read_after = |wait: bool| {
        context.synchronize().expect("synchronization succeeds");
        let mut stream = std::ptr::null_mut();
        let (at, _guard) = x.device_ptr(&other);
        // SAFETY: the memory is allocated, and the handle is not used after the stream is destroyed.
        unsafe {
            sys::cuStreamCreate(&mut stream, 1)
                .result()
                .expect("the stream is created");
            sys::cuMemsetD8Async(at, 1, 256, stream)
                .result()
                .expect("the fill succeeds");
            sys::cuStreamDestroy_v2(stream).result().expect("the stream exists");
        }
        if wait {
            context.synchronize().expect("synchronization succeeds");
        }
        other.clone_dtoh(&x)
    };
    assert_eq!(read_after(true).expect("the host waited for the device").len(), 64);
    let _ = read_after(false);
    context.synchronize().expect_err("the read is unordered");
}

/// A thread-local capture does not restrict other threads.
#[test]
fn thread_local_capture_allows_other_threads_to_allocate() {
    let test = "thread_local_capture_allows_other_threads_to_allocate";
    run_on_driver(test, "", &[], || {
        let context = context();
        let stream = context.new_stream().expect("the stream is created");
        let can_allocate = || {
            context.bind_to_thread().expect("the context exists");
            // SAFETY: the memory is never accessed.
            unsafe { cudarc::driver::result::malloc_sync(16) }.is_ok()
        };
        for (mode, others_can_allocate) in [
            (sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL, false),
            (sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, true),
        ] {
            stream.begin_capture(mode).expect("no capture is active");
            let allocated = std::thread::scope(|scope| scope.spawn(can_allocate).join().expect("no panic"));
            assert_eq!(allocated, others_can_allocate, "{mode:?}");
            // SAFETY: the stream exists, and the graph is discarded.
            let ended = unsafe { sys::cuStreamEndCapture(stream.cu_stream(), &mut std::ptr::null_mut()) };
            assert_eq!(ended.result().is_ok(), others_can_allocate);
        }
    });
}

/// Captures on a stream with these flags, calls `disturb` on another thread if `elsewhere`, and returns
/// whether `disturb` succeeded and whether the capture is valid.
fn disturbed(context: &Arc<CudaContext>, flags: u32, elsewhere: bool, disturb: fn() -> sys::CUresult) -> [bool; 2] {
    let (mut stream, mut graph) = (std::ptr::null_mut(), std::ptr::null_mut());
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    let call = || {
        context.bind_to_thread().expect("the context exists");
        disturb().result().is_ok()
    };
    // SAFETY: the out-parameters are valid, and the stream exists until it is destroyed.
    unsafe {
        sys::cuStreamCreate(&mut stream, flags)
            .result()
            .expect("the stream is created");
        sys::cuStreamBeginCapture_v2(stream, mode)
            .result()
            .expect("no capture is active");
        let succeeded = if elsewhere {
            std::thread::scope(|scope| scope.spawn(call).join().expect("no panic"))
        } else {
            call()
        };
        let is_valid = sys::cuStreamEndCapture(stream, &mut graph).result().is_ok();
        sys::cuStreamDestroy_v2(stream).result().expect("the stream exists");
        [succeeded, is_valid]
    }
}

/// A wait for the context includes the captured stream, so the driver rejects the wait of any thread. Calls that may
/// wait are rejected in the capturing thread. The legacy stream waits for blocking streams only.
#[test]
fn calls_that_wait_for_captured_stream_break_the_capture() {
    let test = "calls_that_wait_for_captured_stream_break_the_capture";
    run_on_driver(test, "", &[], || {
        let context = context();
        let [blocking, non_blocking] = [0, 1];
        // SAFETY: the function takes no pointers.
        let wait = || unsafe { sys::cuCtxSynchronize() };
        let allocate = || {
            let mut address = 0;
            // SAFETY: the out-parameter is valid, and the memory is never accessed.
            unsafe { sys::cuMemAlloc_v2(&mut address, 16) }
        };
        let pin = || {
            let mut address = std::ptr::null_mut();
            // SAFETY: the out-parameter is valid, and the memory is never accessed.
            unsafe { sys::cuMemHostAlloc(&mut address, 16, 0) }
        };
        let fill = || {
            let mut address = 0;
            // SAFETY: the out-parameter is valid, and the fill is within the allocation. A null stream is the
            // legacy stream.
            unsafe {
                sys::cuMemAlloc_v2(&mut address, 16).result().expect("there is memory");
                sys::cuMemsetD8Async(address, 0, 16, std::ptr::null_mut())
            }
        };
        for flags in [blocking, non_blocking] {
            for elsewhere in [false, true] {
                assert_eq!(disturbed(&context, flags, elsewhere, wait), [false; 2]);
                assert_eq!(disturbed(&context, flags, elsewhere, allocate), [elsewhere; 2]);
                assert_eq!(disturbed(&context, flags, elsewhere, pin), [elsewhere; 2]);
            }
        }
        assert_eq!(disturbed(&context, blocking, true, fill), [false; 2]);
        assert_eq!(disturbed(&context, non_blocking, true, fill), [true; 2]);
    });
}

#[test]
fn injected_allocation_failure_is_returned() {
    run_on_driver(
        "injected_allocation_failure_is_returned",
        "fail_alloc=2",
        &[],
        inner_injected_allocation_failure_is_returned,
    );
}

#[test]
fn allocation_beyond_device_memory_fails() {
    run_on_driver(
        "allocation_beyond_device_memory_fails",
        "memory=1M",
        &[],
        inner_allocation_beyond_device_memory_fails,
    );
}

#[test]
fn lost_device_fails_all_calls() {
    run_on_driver(
        "lost_device_fails_all_calls",
        "lost_at=1",
        &[],
        inner_lost_device_fails_all_calls,
    );
}

#[test]
fn injected_launch_failure_is_returned() {
    run_on_driver(
        "injected_launch_failure_is_returned",
        "fail_launch=1",
        &[],
        inner_injected_launch_failure_is_returned,
    );
}

#[test]
fn module_for_newer_gpu_is_rejected() {
    run_on_driver(
        "module_for_newer_gpu_is_rejected",
        "sm=75",
        &[],
        inner_module_for_newer_gpu_is_rejected,
    );
}

#[test]
fn zero_devices_fails_initialization() {
    run_on_driver(
        "zero_devices_fails_initialization",
        "devices=0",
        &[],
        inner_zero_devices_fails_initialization,
    );
}

#[test]
fn invalid_settings_emulate_no_device() {
    run_on_driver(
        "invalid_settings_emulate_no_device",
        "nonsense=1",
        &[],
        inner_zero_devices_fails_initialization,
    );
}

#[test]
fn removed_symbols_are_missing() {
    run_on_driver(
        "removed_symbols_are_missing",
        "driver=11040",
        &["cuGraphLaunch"],
        inner_removed_symbols_are_missing,
    );
}

#[test]
fn peer_devices_copy_directly() {
    run_on_driver(
        "peer_devices_copy_directly",
        "devices=2",
        &[],
        inner_peer_devices_copy_directly,
    );
}

#[test]
fn disabled_peer_access_is_reported() {
    run_on_driver(
        "disabled_peer_access_is_reported",
        "devices=2,peer=0",
        &[],
        inner_disabled_peer_access_is_reported,
    );
}

fn inner_injected_allocation_failure_is_returned() {
    let stream = context().default_stream();
    let _first = stream.alloc_zeros::<f32>(4).expect("the first allocation succeeds");
    assert_eq!(
        stream.alloc_zeros::<f32>(4).expect_err("the second allocation fails").0,
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY
    );
    stream.alloc_zeros::<f32>(4).expect("the third allocation succeeds");
}

fn inner_allocation_beyond_device_memory_fails() {
    let context = context();
    let stream = context.default_stream();
    let half = stream.alloc_zeros::<u8>(600 << 10).expect("the allocation fits");
    assert!(stream.alloc_zeros::<u8>(600 << 10).is_err());
    let (free, all) = context.mem_get_info().expect("memory information is available");
    assert_eq!((free, all), (424 << 10, 1 << 20));
    drop(half);
    stream
        .alloc_zeros::<u8>(600 << 10)
        .expect("the freed memory is available");
}

fn inner_lost_device_fails_all_calls() {
    let context = context();
    let stream = context.default_stream();
    let x = stream.clone_htod(&[1f32; 4]).expect("the copy succeeds");
    assert!(scale(&context, &x, 4).is_err());
    assert!(stream.synchronize().is_err() && context.mem_get_info().is_err());
}

fn inner_injected_launch_failure_is_returned() {
    let context = context();
    let x = context
        .default_stream()
        .clone_htod(&[1f32; 4])
        .expect("the copy succeeds");
    assert_eq!(
        scale(&context, &x, 4).expect_err("the launch fails").0,
        sys::CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
    );
    scale(&context, &x, 4).expect("the device still works");
}

fn inner_module_for_newer_gpu_is_rejected() {
    let options = CompileOptions {
        arch: Some("compute_80"),
        ..Default::default()
    };
    let ptx = compile_ptx_with_opts(KERNELS, options).expect("the kernels compile");
    assert_eq!(
        context().load_module(ptx).expect_err("too new").0,
        sys::CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU
    );
    assert!(context().load_module("nonsense".into()).is_err());
}

fn inner_zero_devices_fails_initialization() {
    assert_eq!(
        CudaContext::new(0).expect_err("no device").0,
        sys::CUresult::CUDA_ERROR_NO_DEVICE
    );
}

fn inner_removed_symbols_are_missing() {
    // SAFETY: the library is only searched for symbols.
    let library = unsafe { sys::culib() };
    // SAFETY: the symbols are not called.
    unsafe {
        assert!(library.get::<*const ()>(b"cuGraphLaunch\0").is_err());
        assert!(library.get::<*const ()>(b"cuLaunchKernel\0").is_ok());
    }
    let mut version = 0;
    // SAFETY: `version` is a valid output pointer.
    let result = unsafe { sys::cuDriverGetVersion(&mut version) };
    assert_eq!(result, sys::CUresult::CUDA_SUCCESS);
    assert_eq!(version, 11040);
}

fn peers() -> i32 {
    let (_first, _second) = (context(), CudaContext::new(1).expect("the second device exists"));
    let mut can = 0;
    // SAFETY: `can` is a valid output pointer.
    let result = unsafe { sys::cuDeviceCanAccessPeer(&mut can, 0, 1) };
    assert_eq!(result, sys::CUresult::CUDA_SUCCESS);
    can
}

fn inner_peer_devices_copy_directly() {
    assert_eq!(peers(), 1);
    let (first, second) = (context(), CudaContext::new(1).expect("the second device exists"));
    let x = first
        .default_stream()
        .clone_htod(&[1f32, 2.0])
        .expect("the copy succeeds");
    let y = second.default_stream().clone_dtod(&x).expect("the copy succeeds");
    assert_eq!(
        second.default_stream().clone_dtoh(&y).expect("the copy succeeds"),
        [1.0, 2.0]
    );
}

fn inner_disabled_peer_access_is_reported() {
    assert_eq!(peers(), 0);
}

#[test]
fn pinned_copy_is_visible_after_wait() {
    let name = "pinned_copy_is_visible_after_wait";
    run_on_driver(name, "", &[], inner_pinned_copy_is_visible_after_wait);
}

fn inner_pinned_copy_is_visible_after_wait() {
    let context = context();
    let stream = context.new_stream().expect("the stream is created");
    let x = stream.clone_htod(&[7u32; 16]).expect("the copy succeeds");
    let mut pinned = std::ptr::null_mut();
    // SAFETY: `pinned` is a valid output pointer.
    let result = unsafe { sys::cuMemHostAlloc(&mut pinned, 64, 0) };
    assert_eq!(result, sys::CUresult::CUDA_SUCCESS);
    let first = || {
        // SAFETY: `pinned` has 64 bytes.
        unsafe { pinned.cast::<u32>().read_volatile() }
    };
    let (address, _guard) = x.device_ptr(&stream);
    // SAFETY: both buffers have 64 bytes.
    let result = unsafe { sys::cuMemcpyDtoHAsync_v2(pinned, address, 64, stream.cu_stream()) };
    assert_eq!((result, first()), (sys::CUresult::CUDA_SUCCESS, 0));
    let event = stream.record_event(None).expect("the event is recorded");
    context
        .new_stream()
        .expect("the stream is created")
        .synchronize()
        .expect("synchronization succeeds");
    assert_eq!(first(), 0, "the host waited only for another stream");
    event.synchronize().expect("synchronization succeeds");
    assert_eq!(first(), 7);
    // SAFETY: the memory is not used afterwards.
    let result = unsafe { sys::cuMemFreeHost(pinned) };
    assert_eq!(result, sys::CUresult::CUDA_SUCCESS);
}

#[test]
fn leaked_allocation_is_reported() {
    let stderr = run_on_driver(
        "leaked_allocation_is_reported",
        "",
        &[],
        inner_leaked_allocation_is_reported,
    );
    assert_reports(stderr, &["leak: allocation 1 of device 0 of 64 bytes was not freed"]);
}

fn inner_leaked_allocation_is_reported() {
    let stream = context().default_stream();
    std::mem::forget(stream.alloc_zeros::<f32>(16).expect("the allocation succeeds"));
}
