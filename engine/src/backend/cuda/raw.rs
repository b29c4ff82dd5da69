//! The lowest floor: `cudarc`'s declarations of the driver and of the compiler of kernels, and what says that they can be called.
//!
//! `cudarc` looks a function up when it is first called and panics if the library or the function is missing. So nothing above calls it
//! without a [`Driver`] or a [`Compiler`], which exist only where all functions that are called were found.

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
    "cuMemsetD8Async",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
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
    fn looking_for_libraries_never_panics() {
        for found in [Driver::find().map(drop), Compiler::find().map(drop)] {
            if let Err(error) = found {
                assert!(error.to_string().starts_with("lib"), "{error}");
            }
        }
    }
}
