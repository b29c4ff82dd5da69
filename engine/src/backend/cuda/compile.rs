//! Compiles CUDA C++ to machine code or PTX with NVRTC at run time, so that the same binary works with and
//! without CUDA.

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;

use super::code::Form;
use super::raw::{self, Compiler, compiler, nvrtc};

/// Errors of kernel compilation.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum CompileError {
    /// A call of the compiler failed for reasons other than the source code.
    #[error("{call}: {text}")]
    Call {
        /// Name of the compiler function that failed.
        call: &'static str,
        /// Error message of the compiler.
        text: String,
    },
    /// The source code does not compile.
    #[error("cannot compile {what}:\n{log}")]
    Text {
        /// Name of the kernel with its specialization.
        what: String,
        /// Output of the compiler.
        log: String,
    },
}

const SUCCESS: u32 = nvrtc::nvrtcResult::NVRTC_SUCCESS as u32;
const COMPILATION: u32 = nvrtc::nvrtcResult::NVRTC_ERROR_COMPILATION as u32;
const INVALID_OPTION: u32 = nvrtc::nvrtcResult::NVRTC_ERROR_INVALID_OPTION as u32;

/// Signature of functions that describe an error code.
type DescribeFn = unsafe extern "C" fn(u32) -> *const c_char;

/// A header that sources include by name.
#[derive(Clone, Copy)]
pub(super) struct Header<'a> {
    /// Name in `#include`.
    pub(super) name: &'a str,
    /// Contents of the header.
    pub(super) text: &'a str,
}

/// An NVRTC program.
struct Program {
    compiler: Compiler,
    handle: nvrtc::nvrtcProgram,
}

impl Compiler {
    fn check(self, call: &'static str, code: u32) -> Result<(), CompileError> {
        if code == SUCCESS {
            return Ok(());
        }
        // SAFETY: `nvrtcGetErrorString` returns a static, zero-terminated string for any code.
        let text = unsafe {
            let describe: DescribeFn = raw::at(raw::compiler_function(self, c"nvrtcGetErrorString"));
            CStr::from_ptr(describe(code))
        };
        let text = text.to_string_lossy().into_owned();
        Err(CompileError::Call { call, text })
    }

    /// Returns the major and minor version.
    pub(super) fn version(self) -> Result<(i32, i32), CompileError> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the out-parameters are valid.
        self.check("nvrtcVersion", unsafe {
            compiler!(self, nvrtcVersion(&mut major, &mut minor))
        })?;
        Ok((major, minor))
    }

    /// Returns the compute capabilities that the compiler supports, as 10 * major + minor, in ascending
    /// order.
    pub(super) fn architectures(self) -> Result<Vec<i32>, CompileError> {
        let mut n = 0;
        // SAFETY: the out-parameter is valid.
        let code = unsafe { compiler!(self, nvrtcGetNumSupportedArchs(&mut n)) };
        self.check("nvrtcGetNumSupportedArchs", code)?;
        let mut all = vec![0; usize::try_from(n).unwrap_or(0)];
        // SAFETY: `all` holds the number of elements reported by `nvrtcGetNumSupportedArchs`.
        let code = unsafe { compiler!(self, nvrtcGetSupportedArchs(all.as_mut_ptr())) };
        self.check("nvrtcGetSupportedArchs", code)?;
        all.sort_unstable();
        Ok(all)
    }

    /// Compiles a source to the form that the options select. `what` is the name of the source in error
    /// messages. PTX has no terminating zero.
    pub(super) fn compile(
        self,
        what: &str,
        text: &str,
        headers: &[Header<'_>],
        options: &[String],
        form: Form,
    ) -> Result<Vec<u8>, CompileError> {
        let program = Program::new(self, what, text, headers)?;
        let options: Vec<CString> = options.iter().map(|option| c_string(option)).collect();
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the program is alive, and `options` holds `options.len()` zero-terminated strings.
        let code = unsafe {
            compiler!(
                self,
                nvrtcCompileProgram(program.handle, options.len() as c_int, options.as_ptr())
            )
        };
        match code {
            COMPILATION | INVALID_OPTION => {
                let (what, log) = (what.to_owned(), program.log()?);
                return Err(CompileError::Text { what, log });
            }
            code => self.check("nvrtcCompileProgram", code)?,
        }
        match form {
            Form::MachineCode(_) => program.machine_code(),
            Form::Ptx(_) => program.ptx(),
        }
    }
}

impl Program {
    fn new(compiler: Compiler, what: &str, text: &str, headers: &[Header<'_>]) -> Result<Program, CompileError> {
        let (text, what) = (c_string(text), c_string(what));
        let texts: Vec<CString> = headers.iter().map(|header| c_string(header.text)).collect();
        let names: Vec<CString> = headers.iter().map(|header| c_string(header.name)).collect();
        let texts: Vec<*const c_char> = texts.iter().map(|text| text.as_ptr()).collect();
        let names: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
        let (n, texts, names) = (headers.len() as c_int, texts.as_ptr(), names.as_ptr());
        let mut handle = ptr::null_mut();
        // SAFETY: all strings are zero-terminated and copied by the call, the arrays hold `n` elements, and
        // the out-parameter is valid.
        let code = unsafe {
            compiler!(
                compiler,
                nvrtcCreateProgram(&mut handle, text.as_ptr(), what.as_ptr(), n, texts, names)
            )
        };
        compiler.check("nvrtcCreateProgram", code)?;
        Ok(Program { compiler, handle })
    }

    fn log(&self) -> Result<String, CompileError> {
        let mut len = 0;
        // SAFETY: the program is alive, and the out-parameter is valid.
        let code = unsafe { compiler!(self.compiler, nvrtcGetProgramLogSize(self.handle, &mut len)) };
        self.compiler.check("nvrtcGetProgramLogSize", code)?;
        let mut log = vec![0u8; len.max(1)];
        // SAFETY: the program is alive, and `log` has the reported length, including the terminating zero.
        let code = unsafe { compiler!(self.compiler, nvrtcGetProgramLog(self.handle, log.as_mut_ptr().cast())) };
        self.compiler.check("nvrtcGetProgramLog", code)?;
        let text = CStr::from_bytes_until_nul(&log).unwrap_or_default();
        Ok(text.to_string_lossy().trim_end().to_owned())
    }

    fn machine_code(&self) -> Result<Vec<u8>, CompileError> {
        let mut len = 0;
        // SAFETY: the program is alive, and the out-parameter is valid.
        let code = unsafe { compiler!(self.compiler, nvrtcGetCUBINSize(self.handle, &mut len)) };
        self.compiler.check("nvrtcGetCUBINSize", code)?;
        let mut elf = vec![0u8; len];
        // SAFETY: the program is alive, and `elf` has the reported length.
        let code = unsafe { compiler!(self.compiler, nvrtcGetCUBIN(self.handle, elf.as_mut_ptr().cast())) };
        self.compiler.check("nvrtcGetCUBIN", code)?;
        Ok(elf)
    }

    fn ptx(&self) -> Result<Vec<u8>, CompileError> {
        let mut len = 0;
        // SAFETY: the program is alive, and the out-parameter is valid.
        let code = unsafe { compiler!(self.compiler, nvrtcGetPTXSize(self.handle, &mut len)) };
        self.compiler.check("nvrtcGetPTXSize", code)?;
        let mut ptx = vec![0u8; len.max(1)];
        // SAFETY: the program is alive, and `ptx` has the reported length, including the terminating zero.
        let code = unsafe { compiler!(self.compiler, nvrtcGetPTX(self.handle, ptx.as_mut_ptr().cast())) };
        self.compiler.check("nvrtcGetPTX", code)?;
        Ok(CStr::from_bytes_until_nul(&ptx).unwrap_or_default().to_bytes().to_vec())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program is alive, and the handle is not used afterwards.
        let _ = unsafe { compiler!(self.compiler, nvrtcDestroyProgram(&mut self.handle)) };
    }
}

/// Converts to a C string. Sources and options are built into this crate and contain no zero bytes.
fn c_string(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}
