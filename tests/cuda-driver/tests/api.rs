//! The driver as programs see it: through `cudarc`, which loads it by name, with kernels that the real NVRTC compiles.
//!
//! Each test runs in a process of its own with the driver on the loader's path. NVRTC is fetched by `tests/cuda.sh --setup`; where it cannot be
//! had, tests fail, unless `LLAMA_CUDA=skip` says that there is none.

use cudarc::driver::{CudaContext, CudaSlice, DevicePtr, DriverError, LaunchConfig, PushKernelArg, sys};
use cudarc::nvrtc::{CompileOptions, compile_ptx_with_opts};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

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

/// The folder of NVRTC; `None` only where the environment says that there is none.
fn nvrtc() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let find = || {
        if std::env::var_os("LLAMA_CUDA").is_some_and(|v| v == "skip") {
            return None;
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cuda.sh");
        let output = Command::new(script).arg("--setup").output().expect("the script runs");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "NVRTC cannot be had, and LLAMA_CUDA=skip does not say so: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Some(Path::new(said.trim()).join("nvidia/cuda_nvrtc/lib"))
    };
    FOLDER.get_or_init(find).as_deref()
}

/// Names the test that a process with the driver is to run.
const INSIDE: &str = "LLAMA_CUDA_DRIVER_TEST";

/// Runs a test of this file again, in a process with the emulated driver, where it does what `inside` does. `settings` are those of
/// `LLAMA_CUDA_EMU`, `without` symbols that the driver lacks. Outside of that process, what was said on standard error.
#[track_caller]
fn on_the_driver(test: &str, settings: &str, without: &[&str], inside: fn()) -> Option<String> {
    if std::env::var_os(INSIDE).is_some() {
        inside();
        return None;
    }
    let Some(nvrtc) = nvrtc() else {
        eprintln!("not run: LLAMA_CUDA=skip says that there is no NVRTC");
        return None;
    };
    let own = std::env::current_exe().expect("the test has a path");
    let library = own.parent().expect("it lies in a folder").join("libcuda_driver.so");
    let folder = tempfile::tempdir().expect("there is a folder");
    let bytes = std::fs::read(library).expect("the driver is built with its tests");
    let bytes = cuda_driver::config::without_symbols(&bytes, without);
    std::fs::write(folder.path().join("libcuda.so"), bytes).expect("the folder is writable");
    let output = Command::new(own)
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, test)
        .env(
            "LD_LIBRARY_PATH",
            format!("{}:{}", folder.path().display(), nvrtc.display()),
        )
        .env("LLAMA_CUDA_EMU", settings)
        .output()
        .expect("the test runs again");
    let (out, said) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success() && out.contains("1 passed"), "{out}{said}");
    Some(said.into_owned())
}

/// What a process said has these words, if it ran.
#[track_caller]
fn says(said: Option<String>, words: &[&str]) {
    for word in words {
        assert!(
            said.as_ref().is_none_or(|said| said.contains(word)),
            "{said:?} does not say `{word}`"
        );
    }
}

fn context() -> Arc<CudaContext> {
    CudaContext::new(0).expect("there is a device")
}

fn module(context: &Arc<CudaContext>) -> Arc<cudarc::driver::CudaModule> {
    let options = CompileOptions {
        arch: Some("compute_80"),
        ..Default::default()
    };
    let ptx = compile_ptx_with_opts(KERNELS, options).expect("the kernels are right");
    context.load_module(ptx).expect("the PTX is known")
}

/// Twice `x`, with the scales of the constants.
fn scale(context: &Arc<CudaContext>, x: &CudaSlice<f32>, n: usize) -> Result<CudaSlice<f32>, DriverError> {
    let function = module(context).load_function("scale")?;
    let stream = context.default_stream();
    let mut y = stream.alloc_zeros::<f32>(n)?;
    let (count, by) = (n as i32, 2f32);
    let mut launch = stream.launch_builder(&function);
    launch.arg(x).arg(&mut y).arg(&count).arg(&by);
    // SAFETY: the kernel's parameters are these.
    unsafe { launch.launch(LaunchConfig::for_num_elems(n as u32)) }?;
    Ok(y)
}

#[test]
fn kernels_compute() {
    let said = on_the_driver("kernels_compute", "", &[], inner_kernels_compute);
    assert!(said.is_none_or(|said| !said.contains("emulated CUDA device")));
}

fn inner_kernels_compute() {
    let context = context();
    let stream = context.default_stream();
    let x: Vec<f32> = (0..10_000).map(|i| (i % 100) as f32 / 10.0 - 5.05).collect();
    let on_device = stream.clone_htod(&x).expect("there is memory");
    let y = scale(&context, &on_device, x.len()).expect("it is launched");
    let y = stream.clone_dtoh(&y).expect("it is copied");
    let scales = [1.0, 2.0, 3.0, 4.0];
    assert!(y.iter().enumerate().all(|(i, y)| *y == x[i] * 2.0 * scales[i % 4]));

    let module = module(&context);
    let mut total = stream.alloc_zeros::<f32>(1).expect("there is memory");
    let n = x.len() as i32;
    let sum = module.load_function("sum").expect("it is there");
    let mut launch = stream.launch_builder(&sum);
    launch.arg(&on_device).arg(&mut total).arg(&n);
    // SAFETY: the kernel's parameters are these.
    unsafe {
        launch.launch(LaunchConfig {
            grid_dim: (1, 1, 1),
            block_dim: (256, 1, 1),
            shared_mem_bytes: 0,
        })
    }
    .expect("it is launched");
    let expected: f64 = x.iter().map(|x| f64::from(*x)).sum();
    let found = f64::from(stream.clone_dtoh(&total).expect("it is copied")[0]);
    assert!((found - expected).abs() < 1e-2, "{found} and {expected}");

    let mut y = stream.alloc_zeros::<f32>(100).expect("there is memory");
    let functions = module.load_function("functions").expect("it is there");
    let n = 100;
    let mut launch = stream.launch_builder(&functions);
    launch.arg(&on_device).arg(&mut y).arg(&n);
    // SAFETY: the kernel's parameters are these.
    unsafe {
        launch.launch(LaunchConfig {
            grid_dim: (1, 1, 1),
            block_dim: (128, 1, 1),
            shared_mem_bytes: 0,
        })
    }
    .expect("it is launched");
    for (y, x) in stream.clone_dtoh(&y).expect("it is copied").iter().zip(&x) {
        let x = f64::from(*x);
        let expected = x.exp() + x.sin() + x.abs().powf(1.3) + x.tanh() + (x * 1e6).sin() + x.abs().ln();
        assert!(
            (f64::from(*y) - expected).abs() < 1e-5 * expected.abs().max(1.0),
            "of {x}: {y} and {expected}"
        );
    }

    let mut answer = stream.alloc_zeros::<i32>(1).expect("there is memory");
    let meaning = module.load_function("meaning").expect("it is there");
    let mut launch = stream.launch_builder(&meaning);
    launch.arg(&mut answer);
    // SAFETY: the kernel's parameters are these.
    unsafe {
        launch.launch(LaunchConfig {
            grid_dim: (1, 1, 1),
            block_dim: (1, 1, 1),
            shared_mem_bytes: 0,
        })
    }
    .expect("it is launched");
    assert_eq!(stream.clone_dtoh(&answer).expect("it is copied"), [42]);
}

#[test]
fn graphs_do_their_work_again() {
    on_the_driver("graphs_do_their_work_again", "", &[], inner_graphs_do_their_work_again);
}

fn inner_graphs_do_their_work_again() {
    let context = context();
    // The safe layer would wait for events from outside of the capture.
    // SAFETY: nothing is freed while it is used.
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream().expect("there are streams");
    let function = module(&context).load_function("scale").expect("it is there");
    let mut x = stream.clone_htod(&[1f32; 64]).expect("there is memory");
    let mut y = stream.alloc_zeros::<f32>(64).expect("there is memory");
    stream.synchronize().expect("it works");
    stream
        .begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        .expect("it is captured");
    let (n, by) = (64i32, 3f32);
    let mut launch = stream.launch_builder(&function);
    launch.arg(&x).arg(&mut y).arg(&n).arg(&by);
    // SAFETY: the kernel's parameters are these.
    unsafe { launch.launch(LaunchConfig::for_num_elems(64)) }.expect("it is recorded");
    let flags = sys::CUgraphInstantiate_flags_enum::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = stream
        .end_capture(flags)
        .expect("the capture is valid")
        .expect("there is work");
    assert_eq!(
        stream.clone_dtoh(&y).expect("it is copied")[..4],
        [0.0; 4],
        "a recorded launch does nothing"
    );
    graph.launch().expect("it is launched");
    assert_eq!(stream.clone_dtoh(&y).expect("it is copied")[..4], [3.0, 6.0, 9.0, 12.0]);
    stream.memcpy_htod(&[10f32; 64], &mut x).expect("it is copied");
    graph.launch().expect("it is launched");
    assert_eq!(
        stream.clone_dtoh(&y).expect("it is copied")[..4],
        [30.0, 60.0, 90.0, 120.0]
    );
}

#[test]
fn wrong_kernels_fail_their_device() {
    let said = on_the_driver(
        "wrong_kernels_fail_their_device",
        "",
        &[],
        inner_wrong_kernels_fail_their_device,
    );
    says(said, &["kernel `beyond`, line ", "at byte 256 of allocation"]);
}

fn inner_wrong_kernels_fail_their_device() {
    let context = context();
    let stream = context.default_stream();
    let function = module(&context).load_function("beyond").expect("it is there");
    let mut y = stream.alloc_zeros::<f32>(64).expect("there is memory");
    let n = 64i32;
    let mut launch = stream.launch_builder(&function);
    launch.arg(&mut y).arg(&n);
    // SAFETY: the kernel's parameters are these; what it does with them is what is tested.
    unsafe {
        launch.launch(LaunchConfig {
            grid_dim: (1, 1, 1),
            block_dim: (1, 1, 1),
            shared_mem_bytes: 0,
        })
    }
    .expect("a launch does not wait");
    let error = stream.synchronize().expect_err("the kernel writes beyond its buffer");
    assert_eq!(error.0, sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_eq!(
        stream.clone_dtoh(&y).expect_err("the device failed").0,
        sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
    );
}

#[test]
fn streams_without_events_are_told() {
    let said = on_the_driver(
        "streams_without_events_are_told",
        "",
        &[],
        inner_streams_without_events_are_told,
    );
    says(
        said,
        &["kernel `scale` reads bytes 0..256", "a copy writes in another stream"],
    );
}

fn inner_streams_without_events_are_told() {
    let context = context();
    // The safe layer puts events between by itself.
    // SAFETY: nothing is freed while it is used.
    unsafe { context.disable_event_tracking() };
    let function = module(&context).load_function("scale").expect("it is there");
    let (compute, upload) = (
        context.new_stream().expect("a stream"),
        context.new_stream().expect("a stream"),
    );
    let mut x = upload.alloc_zeros::<f32>(64).expect("there is memory");
    let mut y = compute.alloc_zeros::<f32>(64).expect("there is memory");
    context.synchronize().expect("it works");
    let mut launch = |wait: bool| {
        upload.memcpy_htod(&[1f32; 64], &mut x).expect("it is copied");
        if wait {
            compute
                .wait(&upload.record_event(None).expect("an event"))
                .expect("it waits");
        }
        let (n, by) = (64i32, 3f32);
        let mut launch = compute.launch_builder(&function);
        launch.arg(&x).arg(&mut y).arg(&n).arg(&by);
        // SAFETY: the kernel's parameters are these.
        unsafe { launch.launch(LaunchConfig::for_num_elems(64)) }.expect("a launch does not wait");
        let result = compute.synchronize();
        context.synchronize().and(result)
    };
    launch(true).expect("there is an event");
    launch(false).expect_err("there is no event");
}

/// A stream that is gone still does what it was given: waiting for the device waits for that, and nothing else does.
#[test]
fn work_of_a_stream_that_is_gone_is_waited_for_with_its_device() {
    let test = "work_of_a_stream_that_is_gone_is_waited_for_with_its_device";
    says(
        on_the_driver(test, "", &[], inner_stream_is_gone),
        &["a copy reads bytes 0..256", "a fill writes in another stream"],
    );
}

fn inner_stream_is_gone() {
    let context = context();
    // SAFETY: nothing is freed while it is used.
    unsafe { context.disable_event_tracking() };
    let other = context.new_stream().expect("a stream");
    let x = other.alloc_zeros::<f32>(64).expect("there is memory");
    let read_after = |wait: bool| {
        context.synchronize().expect("it works");
        let mut stream = std::ptr::null_mut();
        let (at, _guard) = x.device_ptr(&other);
        // SAFETY: the memory is there, and the handle is used until the stream is destroyed.
        unsafe {
            sys::cuStreamCreate(&mut stream, 1).result().expect("a stream");
            sys::cuMemsetD8Async(at, 1, 256, stream).result().expect("it is filled");
            sys::cuStreamDestroy_v2(stream).result().expect("it was there");
        }
        if wait {
            context.synchronize().expect("it works");
        }
        other.clone_dtoh(&x)
    };
    assert_eq!(read_after(true).expect("the device was waited for").len(), 64);
    let _ = read_after(false);
    context.synchronize().expect_err("nobody waited");
}

/// What a thread captures keeps others from nothing, if it says so.
#[test]
fn captures_of_one_thread_let_others_allocate() {
    let test = "captures_of_one_thread_let_others_allocate";
    on_the_driver(test, "", &[], || {
        let context = context();
        let stream = context.new_stream().expect("a stream");
        let allocates = || {
            context.bind_to_thread().expect("there is a context");
            // SAFETY: nobody uses the memory.
            unsafe { cudarc::driver::result::malloc_sync(16) }.is_ok()
        };
        for (mode, others_may) in [
            (sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL, false),
            (sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, true),
        ] {
            stream.begin_capture(mode).expect("nothing is captured");
            let elsewhere = std::thread::scope(|scope| scope.spawn(allocates).join().expect("no panic"));
            assert_eq!(elsewhere, others_may, "{mode:?}");
            // SAFETY: the stream is alive, and nobody wants the graph.
            let ended = unsafe { sys::cuStreamEndCapture(stream.cu_stream(), &mut std::ptr::null_mut()) };
            assert_eq!(ended.result().is_ok(), others_may);
        }
    });
}

#[test]
fn allocations_fail() {
    on_the_driver("allocations_fail", "fail_alloc=2", &[], inner_allocations_fail);
}

#[test]
fn memory_is_limited() {
    on_the_driver("memory_is_limited", "memory=1M", &[], inner_memory_is_limited);
}

#[test]
fn devices_are_lost() {
    on_the_driver("devices_are_lost", "lost_at=1", &[], inner_devices_are_lost);
}

#[test]
fn launches_fail() {
    on_the_driver("launches_fail", "fail_launch=1", &[], inner_launches_fail);
}

#[test]
fn modules_are_too_new() {
    on_the_driver("modules_are_too_new", "sm=75", &[], inner_modules_are_too_new);
}

#[test]
fn there_is_no_device() {
    on_the_driver("there_is_no_device", "devices=0", &[], inner_there_is_no_device);
}

#[test]
fn there_is_no_device_where_settings_are_wrong() {
    on_the_driver(
        "there_is_no_device_where_settings_are_wrong",
        "nonsense=1",
        &[],
        inner_there_is_no_device,
    );
}

#[test]
fn symbols_are_missing() {
    on_the_driver(
        "symbols_are_missing",
        "driver=11040",
        &["cuGraphLaunch"],
        inner_symbols_are_missing,
    );
}

#[test]
fn devices_are_peers() {
    on_the_driver("devices_are_peers", "devices=2", &[], inner_devices_are_peers);
}

#[test]
fn devices_are_no_peers() {
    on_the_driver(
        "devices_are_no_peers",
        "devices=2,peer=0",
        &[],
        inner_devices_are_no_peers,
    );
}

fn inner_allocations_fail() {
    let stream = context().default_stream();
    let _first = stream.alloc_zeros::<f32>(4).expect("the first is there");
    assert_eq!(
        stream.alloc_zeros::<f32>(4).expect_err("the second fails").0,
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY
    );
    stream.alloc_zeros::<f32>(4).expect("the third is there");
}

fn inner_memory_is_limited() {
    let context = context();
    let stream = context.default_stream();
    let half = stream.alloc_zeros::<u8>(600 << 10).expect("it fits");
    assert!(stream.alloc_zeros::<u8>(600 << 10).is_err());
    let (free, all) = context.mem_get_info().expect("it is known");
    assert_eq!((free, all), (424 << 10, 1 << 20));
    drop(half);
    stream.alloc_zeros::<u8>(600 << 10).expect("it fits again");
}

fn inner_devices_are_lost() {
    let context = context();
    let stream = context.default_stream();
    let x = stream.clone_htod(&[1f32; 4]).expect("it is copied");
    assert!(scale(&context, &x, 4).is_err());
    assert!(stream.synchronize().is_err() && context.mem_get_info().is_err());
}

fn inner_launches_fail() {
    let context = context();
    let x = context.default_stream().clone_htod(&[1f32; 4]).expect("it is copied");
    assert_eq!(
        scale(&context, &x, 4).expect_err("refused").0,
        sys::CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
    );
    scale(&context, &x, 4).expect("the device still works");
}

fn inner_modules_are_too_new() {
    let options = CompileOptions {
        arch: Some("compute_80"),
        ..Default::default()
    };
    let ptx = compile_ptx_with_opts(KERNELS, options).expect("the kernels are right");
    assert_eq!(
        context().load_module(ptx).expect_err("too new").0,
        sys::CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU
    );
    assert!(context().load_module("nonsense".into()).is_err());
}

fn inner_there_is_no_device() {
    assert_eq!(
        CudaContext::new(0).expect_err("no device").0,
        sys::CUresult::CUDA_ERROR_NO_DEVICE
    );
}

fn inner_symbols_are_missing() {
    // SAFETY: the library is only looked into.
    let library = unsafe { sys::culib() };
    // SAFETY: the symbols are not called.
    unsafe {
        assert!(library.get::<*const ()>(b"cuGraphLaunch\0").is_err());
        assert!(library.get::<*const ()>(b"cuLaunchKernel\0").is_ok());
    }
    let mut version = 0;
    // SAFETY: the number is a place for it.
    let result = unsafe { sys::cuDriverGetVersion(&mut version) };
    assert_eq!(result, sys::CUresult::CUDA_SUCCESS);
    assert_eq!(version, 11040);
}

fn peers() -> i32 {
    let (_first, _second) = (context(), CudaContext::new(1).expect("there are two"));
    let mut can = 0;
    // SAFETY: the number is a place for it.
    let result = unsafe { sys::cuDeviceCanAccessPeer(&mut can, 0, 1) };
    assert_eq!(result, sys::CUresult::CUDA_SUCCESS);
    can
}

fn inner_devices_are_peers() {
    assert_eq!(peers(), 1);
    let (first, second) = (context(), CudaContext::new(1).expect("there are two"));
    let x = first.default_stream().clone_htod(&[1f32, 2.0]).expect("it is copied");
    let y = second.default_stream().clone_dtod(&x).expect("it is copied");
    assert_eq!(
        second.default_stream().clone_dtoh(&y).expect("it is copied"),
        [1.0, 2.0]
    );
}

fn inner_devices_are_no_peers() {
    assert_eq!(peers(), 0);
}

#[test]
fn copies_to_pinned_memory_arrive_when_they_are_waited_for() {
    let name = "copies_to_pinned_memory_arrive_when_they_are_waited_for";
    on_the_driver(name, "", &[], inner_copies_arrive);
}

fn inner_copies_arrive() {
    let context = context();
    let stream = context.new_stream().expect("a stream");
    let x = stream.clone_htod(&[7u32; 16]).expect("it is copied");
    let mut pinned = std::ptr::null_mut();
    // SAFETY: the pointer is a place for the result.
    let result = unsafe { sys::cuMemHostAlloc(&mut pinned, 64, 0) };
    assert_eq!(result, sys::CUresult::CUDA_SUCCESS);
    let first = || {
        // SAFETY: there are 64 bytes.
        unsafe { pinned.cast::<u32>().read_volatile() }
    };
    let (address, _guard) = x.device_ptr(&stream);
    // SAFETY: both places have 64 bytes.
    let result = unsafe { sys::cuMemcpyDtoHAsync_v2(pinned, address, 64, stream.cu_stream()) };
    assert_eq!((result, first()), (sys::CUresult::CUDA_SUCCESS, 0));
    let event = stream.record_event(None).expect("an event");
    context.new_stream().expect("a stream").synchronize().expect("it works");
    assert_eq!(first(), 0, "the host waited for another stream");
    event.synchronize().expect("it works");
    assert_eq!(first(), 7);
    // SAFETY: nobody reads it any more.
    let result = unsafe { sys::cuMemFreeHost(pinned) };
    assert_eq!(result, sys::CUresult::CUDA_SUCCESS);
}

#[test]
fn leaks_are_told() {
    let said = on_the_driver("leaks_are_told", "", &[], inner_leaks_are_told);
    says(said, &["leak: allocation 1 of device 0 of 64 bytes was not freed"]);
}

fn inner_leaks_are_told() {
    let stream = context().default_stream();
    std::mem::forget(stream.alloc_zeros::<f32>(16).expect("there is memory"));
}
