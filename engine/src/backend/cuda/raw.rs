//! The lowest floor: `cudarc`'s declarations of the driver and of the compiler of kernels, and what says that they can be called.
//!
//! `cudarc` looks a function up when it is first called and panics if the library or the function is missing. So nothing above calls it
//! without a [`Driver`] or a [`Compiler`], which exist only where all functions that are called were found.
//!
//! `cudarc` declares that functions return an enum, and a library newer than it may return a code that the enum lacks, which is undefined
//! behaviour. So `driver!` and `compiler!` call the functions themselves, with codes as numbers; of `cudarc` they take the parameters' types.

use std::ffi::CStr;
use std::sync::OnceLock;

pub(super) use cudarc::driver::sys as cu;
pub(super) use cudarc::nvrtc::sys as nvrtc;

/// Why CUDA cannot be used on this machine.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Missing {
    /// No library of this name is on the loader's path.
    #[error("{library} is not on the library path ({hint})")]
    Library {
        /// Its name.
        library: &'static str,
        /// Where it comes from.
        hint: &'static str,
    },
    /// The library is older than what is called.
    #[error("{library} is too old: it has no {function}")]
    Function {
        /// Name of the library.
        library: &'static str,
        /// The function.
        function: &'static str,
    },
}

/// Functions of the driver that are called.
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
    "cuModuleLoadData",
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

/// Functions of the compiler that are called.
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
    "nvrtcGetErrorString",
];

/// A function as `cudarc` declares it.
pub(super) trait Declared {
    /// The function itself, whose result is a number.
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

/// The function at an address, as the type that its use asks for.
///
/// # Safety
/// The function at the address is of this type.
pub(super) unsafe fn at<F: Copy>(address: usize) -> F {
    const { assert!(size_of::<F>() == size_of::<usize>()) };
    // SAFETY: the caller's promise; both are the size of a pointer.
    unsafe { std::mem::transmute_copy(&address) }
}

/// As [`at`], with the types of the parameters that `cudarc` declares.
///
/// # Safety
/// The declaration is that of the function at the address, but for its result.
pub(super) unsafe fn coded<D: Declared<Coded: Copy>>(_declared: D, address: usize) -> D::Coded {
    // SAFETY: the caller's promise.
    unsafe { at(address) }
}

/// Address of a function of the driver in [`DRIVER`].
pub(super) fn driver_function(_: Driver, name: &CStr) -> usize {
    // SAFETY: whoever has a `Driver` knows that the library is there. Nothing is called.
    let found = unsafe { cu::culib().get::<*const ()>(name.to_bytes_with_nul()) };
    found.map_or(0, |function| (*function).addr())
}

/// Address of a function of the compiler in [`COMPILER`].
pub(super) fn compiler_function(_: Compiler, name: &CStr) -> usize {
    // SAFETY: as in `driver_function`.
    let found = unsafe { nvrtc::culib().get::<*const ()>(name.to_bytes_with_nul()) };
    found.map_or(0, |function| (*function).addr())
}

/// Stands for the type of an argument.
macro_rules! inferred {
    ($argument:expr) => {
        _
    };
}

/// A call of a function of a library, whose address is looked up once.
macro_rules! call {
    ($find:ident($library:expr), $declarations:ident::$function:ident($($argument:expr),*)) => {{
        static ADDRESS: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
        let name = const {
            match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($function), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name holds no zero"),
            }
        };
        let address = *ADDRESS.get_or_init(|| $crate::backend::cuda::raw::$find($library, name));
        assert!(address != 0, "every function that is called was found");
        let declared: unsafe fn($($crate::backend::cuda::raw::inferred!($argument)),*) -> _ = $declarations::$function;
        $crate::backend::cuda::raw::coded(declared, address)($($argument),*)
    }};
}

/// Calls a function of the driver. Its code, as a number.
macro_rules! driver {
    ($driver:expr, $function:ident($($argument:expr),* $(,)?)) => {
        $crate::backend::cuda::raw::call!(driver_function($driver), cu::$function($($argument),*))
    };
}

/// Calls a function of the compiler of kernels. Its code, as a number.
macro_rules! compiler {
    ($compiler:expr, $function:ident($($argument:expr),* $(,)?)) => {
        $crate::backend::cuda::raw::call!(compiler_function($compiler), nvrtc::$function($($argument),*))
    };
}

pub(super) use {call, compiler, driver, inferred};

/// Says that every function in [`DRIVER`] can be called.
#[derive(Clone, Copy, Debug)]
pub(super) struct Driver(());

/// Says that every function in [`COMPILER`] can be called.
#[derive(Clone, Copy, Debug)]
pub(super) struct Compiler(());

impl Driver {
    /// The driver of this machine. Looked for once.
    pub(super) fn find() -> Result<Driver, Missing> {
        static FOUND: OnceLock<Result<Driver, Missing>> = OnceLock::new();
        let find = || {
            // SAFETY: loading the driver runs its initializers and nothing else.
            if !unsafe { cu::is_culib_present() } {
                return Err(Missing::Library {
                    library: "libcuda",
                    hint: "it comes with the NVIDIA driver",
                });
            }
            // SAFETY: the library was just found.
            let library = unsafe { cu::culib() };
            // SAFETY: the symbols are looked up and not called.
            let has = |name: &str| unsafe { library.get::<unsafe extern "C" fn()>(name.as_bytes()) }.is_ok();
            all_there("libcuda", DRIVER, has).map(|()| Driver(()))
        };
        FOUND.get_or_init(find).clone()
    }
}

impl Compiler {
    /// The compiler of kernels of this machine. Looked for once.
    pub(super) fn find() -> Result<Compiler, Missing> {
        static FOUND: OnceLock<Result<Compiler, Missing>> = OnceLock::new();
        let find = || {
            // SAFETY: loading the library runs its initializers and nothing else.
            if !unsafe { nvrtc::is_culib_present() } {
                return Err(Missing::Library {
                    library: "libnvrtc",
                    hint: "it comes with the CUDA toolkit, and as nvidia-cuda-nvrtc from PyPI",
                });
            }
            // SAFETY: the library was just found.
            let library = unsafe { nvrtc::culib() };
            // SAFETY: the symbols are looked up and not called.
            let has = |name: &str| unsafe { library.get::<unsafe extern "C" fn()>(name.as_bytes()) }.is_ok();
            all_there("libnvrtc", COMPILER, has).map(|()| Compiler(()))
        };
        FOUND.get_or_init(find).clone()
    }
}

/// An error that names the first of these functions that a library does not have.
fn all_there(library: &'static str, functions: &[&'static str], has: impl Fn(&str) -> bool) -> Result<(), Missing> {
    let missing = functions.iter().find(|name| !has(name));
    missing.map_or(Ok(()), |&function| Err(Missing::Function { library, function }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_library_is_named_with_what_it_lacks() {
        assert_eq!(all_there("libcuda", DRIVER, |_| true), Ok(()));
        let error = all_there("libcuda", DRIVER, |name| name != "cuMemsetD8Async").unwrap_err();
        assert_eq!(error.to_string(), "libcuda is too old: it has no cuMemsetD8Async");
    }

    #[test]
    fn a_code_that_is_not_declared_is_a_number() {
        extern "C" fn unknown(_: *mut i32, _: i32) -> u32 {
            123_456
        }
        let declared: unsafe fn(_, _) -> _ = cu::cuDeviceGet;
        // SAFETY: the function is of this type, and touches nothing.
        let code = unsafe { coded(declared, unknown as *const () as usize)(std::ptr::null_mut(), 0) };
        assert_eq!(code, 123_456);
    }

    #[test]
    fn looking_for_libraries_never_panics() {
        for found in [Driver::find().map(drop), Compiler::find().map(drop)] {
            if let Err(error) = found {
                assert!(error.to_string().starts_with("lib"), "{error}");
            }
        }
    }
}
