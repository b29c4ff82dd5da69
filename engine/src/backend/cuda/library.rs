//! Kernels of a device, compiled on first use.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, PoisonError};

use super::cache::{Cache, Hash};
use super::compile::CompileError;
use super::context::{Context, Function};
use super::driver::CudaError;
use super::kernel::Kernel;
use super::raw::{Compiler, Missing};
use super::shipped;
use super::specializations::note_loaded;

/// Errors of loading a kernel.
#[derive(Debug, thiserror::Error)]
pub(super) enum KernelError {
    #[error(transparent)]
    Compile(#[from] CompileError),
    #[error("{kernel}: {error}")]
    Load { kernel: String, error: CudaError },
    #[error("cannot load kernel {kernel}: it is not precompiled and cannot be compiled: {missing}")]
    NotShipped { kernel: String, missing: Missing },
}

/// Dynamic shared memory in bytes that every kernel may use without opting in.
const COMMON_SHARED: u32 = 48 << 10;

/// Compiled kernels of a device.
pub(super) struct Library {
    context: Arc<Context>,
    /// The compiler; without it, only precompiled kernels are available.
    compiler: Result<Compiler, Missing>,
    /// Compute capability of the generated code, as in `compute_90`.
    architecture: i32,
    cache: Cache,
    functions: Mutex<HashMap<Kernel, Arc<Function>>>,
}

impl Library {
    /// Creates an empty library for a device with this compute capability.
    ///
    /// If the compiler does not support the capability, code is generated for the next lower supported one,
    /// which the driver translates.
    pub(super) fn new(
        context: &Arc<Context>,
        compiler: Result<Compiler, Missing>,
        capability: i32,
    ) -> Result<Library, CompileError> {
        let known = match &compiler {
            Ok(compiler) => compiler.architectures()?,
            Err(_) => vec![shipped::ARCHITECTURE],
        };
        let architecture = known.into_iter().filter(|&known| known <= capability).max();
        Ok(Library {
            context: context.clone(),
            compiler,
            architecture: architecture.unwrap_or(capability),
            cache: Cache::of_user(),
            functions: Mutex::default(),
        })
    }

    /// Returns a kernel that may be launched with this amount of dynamic shared memory.
    pub(super) fn get(&self, kernel: &Kernel, shared: u32) -> Result<Arc<Function>, KernelError> {
        let failed = |error| KernelError::Load {
            kernel: kernel.describe(),
            error,
        };
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        let function = match functions.get(kernel) {
            Some(function) => function.clone(),
            None => {
                let ptx = self.ptx(kernel)?;
                let name = CString::new(kernel.name).unwrap_or_default();
                let title = CString::new(kernel.describe()).unwrap_or_default();
                let function = Arc::new(Function::load(&self.context, &ptx, &name, &title).map_err(failed)?);
                functions.insert(*kernel, function.clone());
                note_loaded(kernel);
                function
            }
        };
        if shared > COMMON_SHARED {
            function.allow_shared_memory(shared).map_err(failed)?;
        }
        Ok(function)
    }

    /// Returns the kernel's PTX from the disk cache or the compiler, or from the binary if no compiler is
    /// available.
    fn ptx(&self, kernel: &Kernel) -> Result<CString, KernelError> {
        match &self.compiler {
            Ok(compiler) => Ok(self.compiled(*compiler, kernel)?),
            Err(missing) => shipped::find(kernel).ok_or_else(|| KernelError::NotShipped {
                kernel: kernel.describe(),
                missing: missing.clone(),
            }),
        }
    }

    fn compiled(&self, compiler: Compiler, kernel: &Kernel) -> Result<CString, CompileError> {
        let (major, minor) = compiler.version()?;
        let (version, options) = (format!("{major}.{minor}"), kernel.options(self.architecture));
        kernel.with_headers(|headers| {
            let texts = headers.iter().map(|header| header.text);
            let parts = [version.as_str(), kernel.text()].into_iter().chain(texts);
            let key = Hash::of(parts.chain(options.iter().map(String::as_str)));
            self.cache.get(key, || {
                compiler.compile(&kernel.describe(), kernel.text(), headers, &options)
            })
        })
    }
}
