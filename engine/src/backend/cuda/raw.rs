//! The lowest layer: the functions of the driver and the compiler, with the declarations of `cudarc`, and
//! types that prove that the functions exist.
//!
//! `cudarc` resolves a function on its first call and panics if the library or the function is missing.
//! Callers therefore need a [`Driver`] or [`Compiler`] value, which exists only if all functions were found.
//!
//! `cudarc` declares enums as return types. A newer library may return a code that the enum lacks, which
//! would be undefined behavior. `driver!` and `compiler!` therefore call the functions through pointers that
//! return integers, and use only the parameter types of `cudarc`.

use std::ffi::CStr;
use std::sync::OnceLock;

pub(super) use cudarc::driver::sys as cu;
pub(super) use cudarc::nvrtc::sys as nvrtc;

/// Reason why CUDA is unavailable on this machine.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Missing {
    /// The library is not on the loader's path.
    #[error("cannot load {library}: not found on the library path; {hint}")]
    Library {
        /// Name of the library that was not found.
        library: &'static str,
        /// Instructions for installing the library.
        hint: &'static str,
    },
    /// The library is too old for a required function.
    #[error("{library} is too old: function {function} is missing")]
    Function {
        /// Name of the library without the function.
        library: &'static str,
        /// Name of the missing function.
        function: &'static str,
    },
}

/// Required functions of the driver.
const DRIVER: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceTotalMem_v2",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuMemGetInfo_v2",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyPeerAsync",
    "cuDeviceCanAccessPeer",
    "cuCtxEnablePeerAccess",
    "cuMemsetD8Async",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuEventQuery",
    "cuModuleLoadDataEx",
    "cuModuleUnload",
    "cuModuleGetFunction",
    "cuFuncSetAttribute",
    "cuLaunchKernel",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuGraphInstantiateWithFlags",
    "cuGraphDestroy",
    "cuGraphLaunch",
    "cuGraphExecDestroy",
];

/// Required functions of the compiler.
const COMPILER: &[&str] = &[
    "nvrtcVersion",
    "nvrtcGetNumSupportedArchs",
    "nvrtcGetSupportedArchs",
    "nvrtcCreateProgram",
    "nvrtcCompileProgram",
    "nvrtcDestroyProgram",
    "nvrtcGetProgramLogSize",
    "nvrtcGetProgramLog",
    "nvrtcGetPTXSize",
    "nvrtcGetPTX",
    "nvrtcGetCUBINSize",
    "nvrtcGetCUBIN",
    "nvrtcGetErrorString",
];

/// A function as declared by `cudarc`.
pub(super) trait Declared {
    /// The function type with an integer result code.
    type Coded;
}

macro_rules! declared {
    ($( ($($parameter:ident)*) )*) => { $(
        impl<$($parameter,)* Enum> Declared for unsafe fn($($parameter),*) -> Enum {
            type Coded = unsafe extern "C" fn($($parameter),*) -> u32;
        }
    )* };
}

declared! {
    () (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) (A B C D E F G H I J K)
}

/// Converts an address to a function pointer of the inferred type.
///
/// # Safety
/// The function at the address has this type.
pub(super) unsafe fn at<F: Copy>(address: usize) -> F {
    const { assert!(size_of::<F>() == size_of::<usize>()) };
    // SAFETY: the address refers to a function of type `F` (function contract), and both types have the size
    // of a pointer (asserted).
    unsafe { std::mem::transmute_copy(&address) }
}

/// Converts an address to a function pointer with the parameter types that `cudarc` declares and an integer
/// result.
///
/// # Safety
/// The declaration matches the function at the address, except for the result type.
pub(super) unsafe fn coded<D: Declared<Coded: Copy>>(_declared: D, address: usize) -> D::Coded {
    // SAFETY: the declaration matches the function at the address (function contract).
    unsafe { at(address) }
}

/// Returns the address of a driver function, or 0 if the driver lacks the function. All functions of [`DRIVER`] exist.
pub(super) fn driver_function(_: Driver, name: &CStr) -> usize {
    // SAFETY: a `Driver` exists only if the library was loaded. Nothing is called.
    let found = unsafe { cu::culib().get::<*const ()>(name.to_bytes_with_nul()) };
    found.map_or(0, |function| (*function).addr())
}

/// Returns the address of a compiler function in [`COMPILER`].
pub(super) fn compiler_function(_: Compiler, name: &CStr) -> usize {
    // SAFETY: a `Compiler` exists only if the library was loaded. Nothing is called.
    let found = unsafe { nvrtc::culib().get::<*const ()>(name.to_bytes_with_nul()) };
    found.map_or(0, |function| (*function).addr())
}

/// Expands to an inferred type for an argument.
macro_rules! inferred {
    ($argument:expr) => {
        _
    };
}

/// Calls a library function, whose address is resolved once.
macro_rules! call {
    ($find:ident($library:expr), $declarations:ident::$function:ident($($argument:expr),*)) => {{
        static ADDRESS: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
        let name = const {
            match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($function), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("function names contain no zero byte"),
            }
        };
        let address = *ADDRESS.get_or_init(|| $crate::backend::cuda::raw::$find($library, name));
        assert!(address != 0, "Driver::find and Compiler::find checked every function");
        let declared: unsafe fn($($crate::backend::cuda::raw::inferred!($argument)),*) -> _ = $declarations::$function;
        $crate::backend::cuda::raw::coded(declared, address)($($argument),*)
    }};
}

/// Calls a driver function and returns its integer code.
macro_rules! driver {
    ($driver:expr, $function:ident($($argument:expr),* $(,)?)) => {
        $crate::backend::cuda::raw::call!(driver_function($driver), cu::$function($($argument),*))
    };
}

/// Calls a compiler function and returns its integer code.
macro_rules! compiler {
    ($compiler:expr, $function:ident($($argument:expr),* $(,)?)) => {
        $crate::backend::cuda::raw::call!(compiler_function($compiler), nvrtc::$function($($argument),*))
    };
}

pub(super) use {call, compiler, driver, inferred};

/// Proof that every function in [`DRIVER`] exists.
#[derive(Clone, Copy, Debug)]
pub(super) struct Driver(());

/// Proof that every function in [`COMPILER`] exists.
#[derive(Clone, Copy, Debug)]
pub(super) struct Compiler(());

impl Driver {
    /// Loads the driver. The result is cached.
    pub(super) fn find() -> Result<Driver, Missing> {
        static FOUND: OnceLock<Result<Driver, Missing>> = OnceLock::new();
        let find = || {
            // SAFETY: loading the driver only runs its initializers.
            if !unsafe { cu::is_culib_present() } {
                return Err(Missing::Library {
                    library: "libcuda",
                    hint: "install the NVIDIA driver",
                });
            }
            // SAFETY: `is_culib_present` found the library.
            let library = unsafe { cu::culib() };
            // SAFETY: the symbols are resolved but not called.
            let has = |name: &str| unsafe { library.get::<unsafe extern "C" fn()>(name.as_bytes()) }.is_ok();
            check_functions("libcuda", DRIVER, has).map(|()| Driver(()))
        };
        FOUND.get_or_init(find).clone()
    }
}

impl Compiler {
    /// Loads the compiler. The result is cached.
    pub(super) fn find() -> Result<Compiler, Missing> {
        static FOUND: OnceLock<Result<Compiler, Missing>> = OnceLock::new();
        let find = || {
            // SAFETY: loading the library only runs its initializers.
            if !unsafe { nvrtc::is_culib_present() } {
                return Err(Missing::Library {
                    library: "libnvrtc",
                    hint: "install the CUDA toolkit or the PyPI package nvidia-cuda-nvrtc",
                });
            }
            // SAFETY: `is_culib_present` found the library.
            let library = unsafe { nvrtc::culib() };
            // SAFETY: the symbols are resolved but not called.
            let has = |name: &str| unsafe { library.get::<unsafe extern "C" fn()>(name.as_bytes()) }.is_ok();
            check_functions("libnvrtc", COMPILER, has).map(|()| Compiler(()))
        };
        FOUND.get_or_init(find).clone()
    }
}

/// Returns an error that names the first missing function, if any.
fn check_functions(
    library: &'static str,
    functions: &[&'static str],
    has: impl Fn(&str) -> bool,
) -> Result<(), Missing> {
    let missing = functions.iter().find(|name| !has(name));
    missing.map_or(Ok(()), |&function| Err(Missing::Function { library, function }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_library_error_names_missing_function() {
        assert_eq!(check_functions("libcuda", DRIVER, |_| true), Ok(()));
        let error = check_functions("libcuda", DRIVER, |name| name != "cuMemsetD8Async").unwrap_err();
        assert_eq!(
            error.to_string(),
            "libcuda is too old: function cuMemsetD8Async is missing"
        );
    }

    #[test]
    fn undeclared_code_is_returned_as_number() {
        extern "C" fn unknown(_: *mut i32, _: i32) -> u32 {
            123_456
        }
        let declared: unsafe fn(_, _) -> _ = cu::cuDeviceGet;
        // SAFETY: `unknown` has this type and does not access its arguments.
        let code = unsafe { coded(declared, unknown as *const () as usize)(std::ptr::null_mut(), 0) };
        assert_eq!(code, 123_456);
    }

    #[test]
    fn library_lookup_never_panics() {
        for found in [Driver::find().map(drop), Compiler::find().map(drop)] {
            if let Err(error) = found {
                let message = error.to_string();
                let is_expected = message.starts_with("cannot load lib") || message.contains(" is too old: function ");
                assert!(is_expected, "{message}");
            }
        }
    }
}
