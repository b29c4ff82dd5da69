//! Precompiled kernels of common models, embedded as PTX for machines without the compiler.
//!
//! The archive is DEFLATE-compressed text. Each kernel has a line with its name and specialization, followed
//! by PTX for the oldest supported architecture, which drivers translate for newer GPUs.
//! `tests/tests/cuda_shipped.rs` defines the contents and rebuilds the archive with `LLAMA_UPDATE=1`.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::OnceLock;

use miniz_oxide::deflate::compress_to_vec;
use miniz_oxide::inflate::decompress_to_vec_with_limit;

use super::kernel::Kernel;
use super::specializations::Specialization;

/// Compute capability of the archived PTX: 8.0.
pub(super) const ARCHITECTURE: i32 = 80;

/// PTX version to declare, that of CUDA 11.2. The compiler declares its own version, which older drivers
/// reject.
const VERSION: &str = ".version 7.2";

/// Prefix of an assembler hint that newer compilers emit and older PTX versions lack. Removing it does not
/// change results.
const HINT: &str = ".pragma \"used_bytes_mask";

const ARCHIVE: &[u8] = include_bytes!("../../../../kernels/cuda/shipped.deflate");

/// Prefix of the line before a kernel's PTX.
const MARK: &str = "// kernel ";

/// Maximum size of the decompressed text in bytes.
const MAX_BYTES: usize = 16 << 20;

/// Maximum compression level. Slow, but packing is rare.
const LEVEL: u8 = 10;

/// Returns the PTX of a kernel, or `None` if the kernel is not precompiled.
pub(super) fn find(kernel: &Kernel) -> Option<CString> {
    let ptx = *texts().get(kernel.describe().as_str())?;
    CString::new(ptx).ok()
}

/// Returns the PTX of all precompiled kernels, by name and specialization.
pub fn shipped() -> BTreeMap<&'static str, &'static str> {
    texts().clone()
}

fn texts() -> &'static BTreeMap<&'static str, &'static str> {
    static TEXT: OnceLock<String> = OnceLock::new();
    static TEXTS: OnceLock<BTreeMap<&str, &str>> = OnceLock::new();
    let text = TEXT.get_or_init(|| {
        let bytes = decompress_to_vec_with_limit(ARCHIVE, MAX_BYTES).unwrap_or_default();
        String::from_utf8(bytes).unwrap_or_default()
    });
    TEXTS.get_or_init(|| text.split(MARK).filter_map(|entry| entry.split_once('\n')).collect())
}

/// Packs an archive from PTX by name and specialization, in the format of [`shipped`].
pub fn pack(kernels: &BTreeMap<String, String>) -> Vec<u8> {
    let text: String = kernels
        .iter()
        .map(|(name, ptx)| format!("{MARK}{name}\n{ptx}"))
        .collect();
    compress_to_vec(text.as_bytes(), LEVEL)
}

impl Specialization {
    /// Compiles the kernel for the archive: without comments and without unused constants that the compiler
    /// retains.
    ///
    /// # Errors
    /// Returns an error under the conditions of [`Specialization::ptx`].
    pub fn shipped_ptx(&self) -> Result<String, String> {
        let ptx = self.ptx(ARCHITECTURE)?;
        let lines: Vec<&str> = ptx
            .lines()
            .map(|line| line.split("//").next().unwrap_or_default().trim())
            .collect();
        let code = lines.join("\n");
        let kept = lines
            .iter()
            .filter(|line| !line.is_empty() && !line.starts_with(HINT) && !is_unused(line, &code));
        let kept = kept.map(|line| if line.starts_with(".version") { VERSION } else { line });
        Ok(kept.flat_map(|line| [line, "\n"]).collect())
    }
}

/// Returns true if the line defines a constant whose name occurs nowhere else in the code.
fn is_unused(line: &str, code: &str) -> bool {
    let name = line.strip_prefix(".global").and_then(|rest| {
        let declared = rest.strip_suffix(';')?.split(['=', '[']).next()?;
        declared.split_whitespace().last()
    });
    name.is_some_and(|name| code.matches(name).nth(1).is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_constants_are_removed() {
        let code = ".global .align 4 .u32 N = 32;\n.global .align 1 .b8 points[2] = {1, 2};\nmov.u64 %rd1, points;";
        assert!(is_unused(".global .align 4 .u32 N = 32;", code));
        assert!(!is_unused(".global .align 1 .b8 points[2] = {1, 2};", code));
        assert!(!is_unused("mov.u32 %r1, N;", code));
    }

    #[test]
    fn archive_is_read_completely() {
        let kernels = shipped();
        assert!(kernels.len() > 50, "{} kernels", kernels.len());
        assert!(
            kernels
                .values()
                .all(|ptx| ptx.starts_with(VERSION) && ptx.contains(".entry") && ptx.ends_with("}\n"))
        );
        let own: BTreeMap<String, String> = kernels
            .iter()
            .map(|(name, ptx)| (name.to_string(), ptx.to_string()))
            .collect();
        assert!(pack(&own) == ARCHIVE);
    }
}
