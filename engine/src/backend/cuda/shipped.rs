//! Kernels of common models that are part of the binary as PTX, for machines without the compiler of kernels.
//!
//! The archive is a text by DEFLATE: of each kernel a line with its name and values, then its PTX, made for the first architecture that kernels are written
//! for, which the drivers of all later cards translate. `tests/tests/cuda_shipped.rs` says which ones they are, and makes it with `LLAMA_UPDATE=1`.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::OnceLock;

use miniz_oxide::deflate::compress_to_vec;
use miniz_oxide::inflate::decompress_to_vec_with_limit;

use super::kernel::Kernel;
use super::specializations::Specialization;

/// Compute capability that the archive is made for.
pub(super) const ARCHITECTURE: i32 = 80;

/// The language's version that kernels are declared to be in, that of CUDA 11.2: the compiler names its own, which older drivers refuse.
const VERSION: &str = ".version 7.2";

/// Begins what newer compilers tell the assembler and older versions of the language do not have. It changes nothing that is computed.
const HINT: &str = ".pragma \"used_bytes_mask";

const ARCHIVE: &[u8] = include_bytes!("../../../../kernels/cuda/shipped.deflate");

/// Begins the line before a kernel's PTX.
const MARK: &str = "// kernel ";

/// Bytes of the text at most.
const MAX_BYTES: usize = 16 << 20;

/// Slow, and done once in a while.
const LEVEL: u8 = 10;

/// The PTX of a kernel, if it is part of the binary.
pub(super) fn find(kernel: &Kernel) -> Option<CString> {
    let ptx = *texts().get(kernel.describe().as_str())?;
    CString::new(ptx).ok()
}

/// PTX by name and values of the kernel, of all kernels that are part of the binary.
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

/// An archive of these kernels' PTX, by name and values, as [`shipped`] has them.
pub fn pack(kernels: &BTreeMap<String, String>) -> Vec<u8> {
    let text: String = kernels
        .iter()
        .map(|(name, ptx)| format!("{MARK}{name}\n{ptx}"))
        .collect();
    compress_to_vec(text.as_bytes(), LEVEL)
}

impl Specialization {
    /// Its PTX as an archive has it: without comments, and without constants that the compiler keeps although nothing uses them.
    ///
    /// # Errors
    /// As [`Specialization::ptx`].
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

/// True if the line is a constant whose name is nowhere else in the code.
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
    fn constants_that_nothing_uses_are_left_out() {
        let code = ".global .align 4 .u32 N = 32;\n.global .align 1 .b8 points[2] = {1, 2};\nmov.u64 %rd1, points;";
        assert!(is_unused(".global .align 4 .u32 N = 32;", code));
        assert!(!is_unused(".global .align 1 .b8 points[2] = {1, 2};", code));
        assert!(!is_unused("mov.u32 %r1, N;", code));
    }

    #[test]
    fn the_archive_is_read_whole() {
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
