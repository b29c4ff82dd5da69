//! Precompiled kernels of common models, embedded as PTX for machines without the compiler.
//!
//! The archive is LZMA-compressed text. Each kernel has a line with a hash of its sources, its name, and its
//! specialization. PTX for compute capability 8.0 follows, which drivers translate for newer GPUs. Kernels that
//! require compute capability 9.0 are archived for these GPUs. Kernels of other sources are ignored. `.ci/kernels`
//! builds the archive, and `tests/tests/cuda_shipped.rs` defines the contents.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::sync::OnceLock;

use lzma_rust2::{LzmaOptions, LzmaReader, LzmaWriter};
use rayon::prelude::*;

use super::code::{Code, HINT};
use super::kernel::Kernel;
use super::specializations::Specialization;

/// Compute capability of the archived PTX. Older GPUs need the compiler.
pub(super) const ARCHITECTURE: i32 = 80;

/// Compute capability of archived kernels that run on no other.
const SPECIFIC_ARCHITECTURE: i32 = 90;

/// PTX version to declare, which every supported driver accepts: the version of CUDA 11.2.
const VERSION: &str = ".version 7.2";

/// PTX version of kernels for compute capability 9.0 only: the version of CUDA 12.0.
const SPECIFIC_VERSION: &str = ".version 8.0";

/// The embedded archive; empty if the archive was missing when this crate was built.
const EMBEDDED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/shipped.lzma"));

/// Prefix of the line before a kernel's PTX.
const MARK: &str = "// kernel ";

/// Maximum memory for decompression in KiB: mostly the dictionary.
const MAX_MEMORY: u32 = 48 << 10;

/// Compression level with a dictionary of 32 MiB, which is more than the text.
const LEVEL: u32 = 8;

/// Returns the PTX of a kernel, or `None` if the kernel is not precompiled.
pub(super) fn find(kernel: &Kernel) -> Option<Code> {
    let entry = archive().get(kernel.describe().as_str())?;
    if entry.sources == kernel.key().to_hex() {
        Some(Code::ptx(entry.ptx))
    } else {
        None
    }
}

/// Returns the number of precompiled kernels.
pub fn n_shipped() -> usize {
    archive().len()
}

/// A precompiled kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry<'a> {
    /// Hash of the sources.
    sources: &'a str,
    ptx: &'a str,
}

type Archive<'a> = BTreeMap<&'a str, Entry<'a>>;

/// The text of the archive in use.
static TEXT: OnceLock<String> = OnceLock::new();

fn archive() -> &'static Archive<'static> {
    static ARCHIVE: OnceLock<Archive<'static>> = OnceLock::new();
    ARCHIVE.get_or_init(|| entries(TEXT.get_or_init(|| unpacked(EMBEDDED))))
}

/// Replaces the embedded archive by another archive. Returns false if an archive is in use already.
pub fn use_archive(archive: &[u8]) -> bool {
    TEXT.set(unpacked(archive)).is_ok()
}

fn unpacked(archive: &[u8]) -> String {
    let mut text = String::new();
    let read =
        LzmaReader::new_mem_limit(archive, MAX_MEMORY, None).and_then(|mut reader| reader.read_to_string(&mut text));
    if read.is_err() {
        text.clear();
    }
    text
}

/// Compresses the text of an archive.
fn packed(text: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut writer = LzmaWriter::new_use_header(Vec::new(), &LzmaOptions::with_preset(LEVEL), Some(text.len() as u64))?;
    writer.write_all(text)?;
    writer.finish()
}

/// Returns the kernels of an archive's text by name and specialization.
fn entries(text: &str) -> Archive<'_> {
    let entry = |entry| -> Option<_> {
        let (title, ptx) = str::split_once(entry, '\n')?;
        let (sources, name) = title.split_once(' ')?;
        Some((name, Entry { sources, ptx }))
    };
    text.split(MARK).filter_map(entry).collect()
}

/// Compiles kernels, and packs them as an archive.
///
/// # Errors
/// Returns an error under the conditions of [`Specialization::ptx`].
pub fn pack(kernels: &[Specialization]) -> Result<Vec<u8>, String> {
    let texts = kernels.par_iter().map(|kernel| {
        let (sources, ptx) = (kernel.kernel().key().to_hex(), kernel.shipped_ptx()?);
        Ok(format!("{MARK}{sources} {}\n{ptx}", kernel.describe()))
    });
    let texts: Vec<String> = texts.collect::<Result<_, String>>()?;
    packed(texts.concat().as_bytes()).map_err(|e| e.to_string())
}

impl Specialization {
    /// Returns true if the kernel is precompiled from the current sources.
    pub fn is_shipped(&self) -> bool {
        find(self.kernel()).is_some()
    }

    /// Returns the compute capability of the archived PTX, as 10 * major + minor.
    pub fn shipped_capability(&self) -> i32 {
        if self.is_specific() {
            SPECIFIC_ARCHITECTURE
        } else {
            ARCHITECTURE
        }
    }

    /// Compiles the kernel for the archive: without comments and without unused constants that the compiler
    /// retains.
    ///
    /// # Errors
    /// Returns an error under the conditions of [`Specialization::ptx`].
    pub fn shipped_ptx(&self) -> Result<String, String> {
        let version = if self.is_specific() { SPECIFIC_VERSION } else { VERSION };
        let ptx = self.ptx(self.shipped_capability())?;
        let lines: Vec<&str> = ptx
            .lines()
            .map(|line| line.split("//").next().unwrap_or_default().trim())
            .collect();
        let code = lines.join("\n");
        let kept = lines
            .iter()
            .filter(|line| !line.is_empty() && !line.starts_with(HINT) && !is_unused(line, &code));
        let kept = kept.map(|line| if line.starts_with(".version") { version } else { line });
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
    fn archive_entries_have_hash_name_and_code() {
        let text =
            format!("{MARK}0a mul_vec (mul_vec.cu, TYPE=q4_K)\n.version 7.2\n}}\n{MARK}0b rows (rows.cu)\nret;\n");
        let archive = packed(text.as_bytes()).expect("memory takes all bytes");
        let text = unpacked(&archive);
        let (first, second) = (
            Entry {
                sources: "0a",
                ptx: ".version 7.2\n}\n",
            },
            Entry {
                sources: "0b",
                ptx: "ret;\n",
            },
        );
        let expected = Archive::from([("mul_vec (mul_vec.cu, TYPE=q4_K)", first), ("rows (rows.cu)", second)]);
        assert_eq!(entries(&text), expected);
        for damaged in [&[][..], &archive[..archive.len() - 2], b"DEFLATE-compressed text"] {
            assert_eq!(entries(&unpacked(damaged)), Archive::new());
        }
    }
}
