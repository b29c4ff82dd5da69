//! Kernels of a device, loaded on first use: as machine code if possible, otherwise as PTX of the compiler, or
//! from the binary.

use std::collections::{HashMap, HashSet};
use std::env;
use std::ffi::CString;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use super::cache::{Cache, Hash};
use super::code::{Code, Form, lowered, ptx_version};
use super::compile::CompileError;
use super::context::{Context, Function};
use super::driver::CudaError;
use super::kernel::{Kernel, WGMMA_PROBE};
use super::raw::{Compiler, Missing};
use super::shipped;
use super::specializations::note_loaded;

/// Errors of loading a kernel.
#[derive(Debug, thiserror::Error)]
pub(super) enum KernelError {
    #[error("{kernel}: {error}")]
    Load { kernel: String, error: CudaError },
    #[error("cannot load kernel {kernel}: {}", attempts.join("; "))]
    NoForm { kernel: String, attempts: Vec<String> },
}

/// Target of messages that command lines show without details of the engine.
pub(super) const SHOWN: &str = "llama::cuda";

/// Shared memory in bytes that every kernel may use without opting in, including its static memory.
const COMMON_SHARED: u32 = 48 << 10;

/// Dynamic shared memory in bytes above which kernels opt in. Static memory takes at most the remaining
/// `COMMON_SHARED - OPT_IN_SHARED` bytes.
const OPT_IN_SHARED: u32 = 40 << 10;

/// Environment variable that disables early launches with 0.
const EARLY: &str = "LLAMA_CUDA_EARLY";

/// First compute capability whose kernels can wait for earlier kernels of a stream.
const WAITING_CAPABILITY: i32 = 90;

/// Compute capability of GPUs with `wgmma`.
const WGMMA_CAPABILITY: i32 = 90;

/// Kernels of a device.
pub(super) struct Library {
    context: Arc<Context>,
    /// The compiler; without it, only precompiled kernels are available.
    compiler: Result<Compiler, Missing>,
    /// Version of the compiler, which is part of the keys of the cache.
    compiler_version: String,
    /// True if the driver supports early launches.
    has_early_launches: bool,
    /// Newest PTX version that the driver accepts, if known.
    ptx_version: Option<(u32, u32)>,
    /// Sources of code in the order of preference.
    candidates: Vec<Candidate>,
    cache: Cache,
    functions: Mutex<HashMap<Kernel, Arc<Function>>>,
    /// Kernels that failed and that other kernels replace.
    refused: Mutex<HashSet<Kernel>>,
}

/// A source of code.
struct Candidate {
    source: Source,
    /// Reason why the driver rejects all code of this source.
    refusal: OnceLock<String>,
}

#[derive(Clone, Copy)]
enum Source {
    Compiler(Compiler, Form),
    /// PTX in the binary.
    Archive,
}

impl Library {
    /// Creates an empty library for a device with this compute capability.
    pub(super) fn new(
        context: &Arc<Context>,
        compiler: Result<Compiler, Missing>,
        capability: i32,
    ) -> Result<Library, String> {
        let text = |error: CompileError| error.to_string();
        let (mut sources, mut compiler_version) = (Vec::new(), String::new());
        if let Ok(compiler) = compiler {
            let (major, minor) = compiler.version().map_err(text)?;
            compiler_version = format!("{major}.{minor}");
            let forms = Form::suitable(&compiler.architectures().map_err(text)?, capability);
            sources.extend(forms.into_iter().map(|form| Source::Compiler(compiler, form)));
        }
        if capability >= shipped::ARCHITECTURE {
            sources.push(Source::Archive);
        }
        if sources.is_empty() {
            let (major, minor) = (capability / 10, capability % 10);
            return Err(format!(
                "NVRTC {compiler_version} does not support compute capability {major}.{minor}; use NVRTC 12 or 13"
            ));
        }
        let candidate = |source| Candidate {
            source,
            refusal: OnceLock::new(),
        };
        Ok(Library {
            compiler,
            compiler_version,
            has_early_launches: context.has_early_launches() && env::var_os(EARLY).is_none_or(|value| value != "0"),
            ptx_version: ptx_version(context.version().map_err(|error| error.to_string())?),
            context: context.clone(),
            candidates: sources.into_iter().map(candidate).collect(),
            cache: Cache::of_user(),
            functions: Mutex::default(),
            refused: Mutex::default(),
        })
    }

    /// Stops using a kernel that has a substitute, and logs the reason once.
    pub(super) fn refuse(&self, kernel: &Kernel, error: &dyn fmt::Display) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if refused.insert(*kernel) {
            let title = kernel.describe();
            tracing::warn!(
                target: SHOWN,
                "a slower CUDA kernel replaces {title}, which failed: {error}; update the NVIDIA driver and NVRTC, or report this message"
            );
        }
    }

    /// Returns true if a kernel failed and another kernel replaces it.
    pub(super) fn is_refused(&self, kernel: &Kernel) -> bool {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.contains(kernel)
    }

    /// Loads a kernel for launches with this amount of dynamic shared memory. Returns `None` if the kernel was
    /// rejected.
    pub(super) fn function_for(&self, kernel: &Kernel, shared: u32) -> Result<Option<Arc<Function>>, KernelError> {
        self.load(&[*kernel])?;
        self.loaded(kernel, shared)
    }

    /// Returns true if the device, the driver, and the compiler or the archive support `wgmma`. Only GPUs of compute
    /// capability 9.0 have these instructions.
    pub(super) fn has_wgmma(&self, capability: i32) -> bool {
        capability == WGMMA_CAPABILITY && self.function(&wgmma_probe()).is_ok()
    }

    /// Returns a loaded kernel that may be launched with this amount of dynamic shared memory, or `None` if the
    /// kernel is not loaded.
    pub(super) fn loaded(&self, kernel: &Kernel, shared: u32) -> Result<Option<Arc<Function>>, KernelError> {
        let functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(function) = functions.get(kernel).cloned() else {
            return Ok(None);
        };
        drop(functions);
        if shared > OPT_IN_SHARED {
            let allowed = function.allow_shared_memory(shared.max(COMMON_SHARED));
            allowed.map_err(|error| failed(kernel, error))?;
        }
        Ok(Some(function))
    }

    /// Loads the kernels that are not loaded yet, with up to one thread per core. Kernels that have a substitute count
    /// as rejected if they cannot be loaded.
    pub(super) fn load(&self, kernels: &[Kernel]) -> Result<(), KernelError> {
        let mut missing: Vec<Kernel> = Vec::new();
        {
            let functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
            for kernel in kernels {
                if !functions.contains_key(kernel) && !missing.contains(kernel) {
                    missing.push(*kernel);
                }
            }
        }
        // The first kernel finds the form that the driver accepts.
        let Some((first, rest)) = missing.split_first() else {
            return Ok(());
        };
        let is_compiled = self.must_compile(first);
        self.add(first)?;
        let n_compiled = usize::from(is_compiled) + rest.iter().filter(|kernel| self.must_compile(kernel)).count();
        if n_compiled > 1 {
            tracing::info!(target: SHOWN, "compiling {n_compiled} CUDA kernels (once per GPU and version)");
        }
        self.add_in_parallel(rest)
    }

    fn add_in_parallel(&self, kernels: &[Kernel]) -> Result<(), KernelError> {
        let n_threads = thread::available_parallelism().map_or(1, usize::from);
        let next = AtomicUsize::new(0);
        let work = || -> Result<(), KernelError> {
            while let Some(kernel) = kernels.get(next.fetch_add(1, Ordering::Relaxed)) {
                // After an error, all threads stop.
                self.add(kernel)
                    .inspect_err(|_| next.store(kernels.len(), Ordering::Relaxed))?;
            }
            Ok(())
        };
        thread::scope(|scope| {
            let others: Vec<_> = (1..n_threads.min(kernels.len())).map(|_| scope.spawn(work)).collect();
            let own = work();
            let joined = others.into_iter().map(|thread| match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            joined.fold(own, Result::and)
        })
    }

    /// Loads a kernel. If another thread has loaded the kernel in the meantime, its function is kept.
    fn add(&self, kernel: &Kernel) -> Result<(), KernelError> {
        let function = match self.function(kernel) {
            Ok(function) => Arc::new(function),
            Err(error) if kernel.is_specific() => {
                self.refuse(kernel, &error);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        functions.entry(*kernel).or_insert(function);
        drop(functions);
        note_loaded(kernel);
        Ok(())
    }

    /// Tries the sources in order. A source that fails leads to the next one; other errors of the driver are
    /// final.
    fn function(&self, kernel: &Kernel) -> Result<Function, KernelError> {
        let name = CString::new(kernel.name).unwrap_or_default();
        let title = CString::new(kernel.describe()).unwrap_or_default();
        let mut attempts: Vec<String> = Vec::new();
        if let Err(missing) = &self.compiler {
            attempts.push(format!("it cannot be compiled: {missing}"));
        }
        for candidate in &self.candidates {
            if let Some(refusal) = candidate.refusal.get() {
                attempts.push(refusal.clone());
                continue;
            }
            let code = match self.code(candidate.source, kernel) {
                Ok(code) => code,
                Err(reason) => {
                    attempts.push(reason);
                    continue;
                }
            };
            let waits = self.has_early_launches && candidate.source.waits();
            match Function::load(&self.context, &code, &name, &title, waits) {
                Ok(function) => return Ok(function),
                Err(error) if error.refuses_code() => {
                    let reason = format!("the driver refused {}: {error}", candidate.source);
                    if error.refuses_form() && !kernel.is_specific() {
                        tracing::debug!("{reason}");
                        // If another thread has stored the reason first, it is the same reason.
                        let _ = candidate.refusal.set(reason.clone());
                    }
                    attempts.push(reason);
                }
                Err(error) => return Err(failed(kernel, error)),
            }
        }
        Err(KernelError::NoForm {
            kernel: kernel.describe(),
            attempts,
        })
    }

    /// Returns the kernel's code from a source, or the reason why the source has none.
    fn code(&self, source: Source, kernel: &Kernel) -> Result<Code, String> {
        let (compiler, form) = match source {
            Source::Compiler(compiler, form) => (compiler, form),
            Source::Archive => return shipped::find(kernel).ok_or_else(|| "it is not precompiled".to_owned()),
        };
        let compile = || {
            let (title, options) = (kernel.describe(), kernel.options(form));
            kernel.with_headers(|headers| compiler.compile(&title, kernel.text(), headers, &options, form))
        };
        let compiled = self.cache.get(self.key(kernel, form), compile);
        let compiled = compiled.map_err(|error: CompileError| error.to_string())?;
        let code = match form {
            Form::MachineCode(_) => Code::machine_code(compiled),
            Form::Ptx(_) => {
                let ptx = std::str::from_utf8(&compiled).ok();
                ptx.map(|ptx| Code::ptx(&lowered(ptx, self.ptx_version)))
            }
        };
        code.ok_or_else(|| format!("the compiler returned no {form}"))
    }

    /// Returns the key of a compiled kernel in the cache.
    fn key(&self, kernel: &Kernel, form: Form) -> Hash {
        let options = kernel.options(form);
        kernel.with_headers(|headers| {
            let texts = headers.iter().map(|header| header.text);
            let parts = [self.compiler_version.as_str(), kernel.text()].into_iter().chain(texts);
            Hash::of(parts.chain(options.iter().map(String::as_str)))
        })
    }

    /// Returns true if loading the kernel invokes the compiler, as far as is known.
    fn must_compile(&self, kernel: &Kernel) -> bool {
        let usable = self
            .candidates
            .iter()
            .find(|candidate| candidate.refusal.get().is_none());
        match usable.map(|candidate| candidate.source) {
            Some(Source::Compiler(_, form)) => !self.cache.contains(self.key(kernel, form)),
            _ => false,
        }
    }
}

impl Source {
    /// Returns true if each block of the code first waits for earlier kernels of the stream.
    fn waits(self) -> bool {
        match self {
            Source::Compiler(_, Form::MachineCode(capability) | Form::Ptx(capability)) => {
                capability >= WAITING_CAPABILITY
            }
            Source::Archive => false,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Compiler(_, form) => form.fmt(f),
            Source::Archive => f.write_str("precompiled PTX"),
        }
    }
}

/// Returns the kernel that loads only if `wgmma` is supported.
pub(super) fn wgmma_probe() -> Kernel {
    Kernel::new(&WGMMA_PROBE, "wgmma_probe")
}

fn failed(kernel: &Kernel, error: CudaError) -> KernelError {
    KernelError::Load {
        kernel: kernel.describe(),
        error,
    }
}
