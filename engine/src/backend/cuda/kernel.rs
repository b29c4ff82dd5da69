//! Kernel sources, which are embedded in the binary, and kernel specializations.

use std::fmt::Write;

use kernels::GgmlType;
use kernels::quants::{Points, points_of};

use super::cache::Hash;
use super::code::Form;
use super::compile::Header;

/// A CUDA source file.
#[derive(Debug)]
pub(super) struct Source {
    /// File name.
    pub(super) name: &'static str,
    text: &'static str,
    /// True if decoding spends its time in these kernels.
    pub(super) is_hot: bool,
    /// Compiler options in addition to the specialization.
    options: &'static [&'static str],
    /// `a` if the kernels use instructions of a single compute capability, otherwise empty.
    suffix: &'static str,
}

impl PartialEq for Source {
    fn eq(&self, other: &Source) -> bool {
        self.name == other.name
    }
}

impl Eq for Source {}

impl std::hash::Hash for Source {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

macro_rules! sources {
    ($( $constant:ident = $file:literal $is_hot:literal $options:expr $(, $suffix:literal)?; )*) => {
        $(
            pub(super) static $constant: Source = Source {
                name: $file,
                text: include_str!(concat!("../../../../kernels/cuda/", $file)),
                is_hot: $is_hot,
                options: &$options,
                suffix: concat!("" $(, $suffix)?),
            };
        )*
    };
}

// Sources: file name, whether the kernels are hot, additional options, and the suffix of the architecture.
sources! {
    ANGLES = "angles.cu" false ["--fmad=false"];
    ATTENTION = "attention.cu" true [];
    ATTENTION_MERGE = "attention_merge.cu" true [];
    ATTENTION_PAGES = "attention_pages.cu" true [];
    ATTENTION_TILES = "attention_tiles.cu" true [];
    BEST = "best.cu" false [];
    COPIES = "copies.cu" false [];
    ELEMENTWISE = "elementwise.cu" false [];
    GROUP = "group.cu" false [];
    HALVE_COLUMNS = "halve_columns.cu" false [];
    // Also quantizes and rotates heads, which must round as in `quantize.cu` and `rope.cu`.
    HEADS = "heads.cu" false ["--fmad=false"];
    MUL_FEW_INT = "mul_few_int.cu" true [];
    MUL_MAT = "mul_mat.cu" true [];
    MUL_MAT_HALVES = "mul_mat_halves.cu" true [];
    MUL_MAT_TENSOR = "mul_mat_tensor.cu" true [];
    MUL_MAT_WGMMA = "mul_mat_wgmma.cu" true [], "a";
    MUL_STREAM = "mul_stream.cu" true [];
    MUL_VEC = "mul_vec.cu" true [];
    MUL_VEC_INT = "mul_vec_int.cu" true [];
    NGRAM = "ngram.cu" false [];
    // Quantizers make decisions based on f32 sums. Without fused multiply-add, they round as on the CPU.
    QUANTIZE = "quantize.cu" false ["--fmad=false"];
    QUANTIZE_COLUMNS = "quantize_columns.cu" false [];
    RECUR = "recur.cu" false [];
    ROPE = "rope.cu" false ["--fmad=false"];
    ROUND_COLUMNS = "round_columns.cu" false [];
    ROUTER = "router.cu" false [];
    ROWS = "rows.cu" false [];
    SCAN = "scan.cu" true [];
    SCAN_CHUNKS = "scan_chunks.cu" true [];
    SCATTER = "scatter.cu" false [];
    SELECT = "select.cu" false [];
    TOP = "top.cu" false [];
    WGMMA_PROBE = "wgmma_probe.cu" false [], "a";
}

macro_rules! headers {
    ($( $file:literal )*) => {
        [$( Header { name: $file, text: include_str!(concat!("../../../../kernels/cuda/", $file)) } ),*]
    };
}

const HEADERS: [Header<'static>; 26] = headers! {
    "async.cuh" "attention.cuh" "common.cuh" "blocks.cuh" "cells.cuh" "columns.cuh" "dots.cuh" "encode.cuh" "few.cuh" "few_int.cuh" "half_products.cuh" "halves.cuh" "halves_of_rows.cuh"
    "matrices.cuh" "mbarrier.cuh" "packed.cuh"
    "partials.cuh" "pieces.cuh" "rope.cuh" "select.cuh" "steps.cuh" "tiled.cuh" "tiles.cuh" "unary.cuh" "visible.cuh" "wgmma.cuh"
};

/// Value of a preprocessor definition.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Value {
    Int(i64),
    Word(&'static str),
    /// A quantization type, spelled as in `blocks.cuh`.
    Type(GgmlType),
}

/// Maximum number of definitions per kernel.
const MAX_DEFINES: usize = 15;

/// A kernel with its specialization.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Kernel {
    pub(super) source: &'static Source,
    /// Name of the kernel function.
    pub(super) name: &'static str,
    defines: [Option<(&'static str, Value)>; MAX_DEFINES],
}

impl Kernel {
    pub(super) fn new(source: &'static Source, name: &'static str) -> Kernel {
        Kernel {
            source,
            name,
            defines: [None; MAX_DEFINES],
        }
    }

    /// Adds a preprocessor definition.
    pub(super) fn with(mut self, name: &'static str, value: Value) -> Kernel {
        let free = self.defines.iter_mut().find(|define| define.is_none());
        *free.expect("kernels have at most MAX_DEFINES definitions") = Some((name, value));
        self
    }

    /// Adds a definition of a type.
    pub(super) fn with_type(self, name: &'static str, ty: GgmlType) -> Kernel {
        self.with(name, Value::Type(ty))
    }

    /// Adds a definition of an integer.
    pub(super) fn with_int(self, name: &'static str, value: i64) -> Kernel {
        self.with(name, Value::Int(value))
    }

    /// Returns true if the kernel only runs on GPUs of the compute capability it is compiled for. Launches of these kernels
    /// name a substitute.
    pub(super) fn is_specific(&self) -> bool {
        !self.source.suffix.is_empty()
    }

    fn defines(&self) -> impl Iterator<Item = (&'static str, Value)> {
        self.defines.into_iter().map_while(|define| define)
    }

    /// Formats function, source, and definitions for messages.
    pub(super) fn describe(&self) -> String {
        let mut text = format!("{} ({}", self.name, self.source.name);
        for (name, value) in self.defines() {
            let _ = write!(text, ", {name}={}", value.text());
        }
        text + ")"
    }

    /// Returns the source code.
    pub(super) fn text(&self) -> &'static str {
        self.source.text
    }

    /// Calls `f` with the headers that the source may include.
    pub(super) fn with_headers<R>(&self, f: impl FnOnce(&[Header<'_>]) -> R) -> R {
        let tables = self.defines().find_map(|(_, value)| match value {
            Value::Type(ty) => points_of(ty),
            _ => None,
        });
        let text = tables.map_or_else(String::new, points_text);
        let points = Header {
            name: "codebooks.cuh",
            text: &text,
        };
        let mut all = [points; HEADERS.len() + 1];
        all[..HEADERS.len()].copy_from_slice(&HEADERS);
        f(&all)
    }

    /// Returns a hash of the specialization and of all sources.
    pub(super) fn key(&self) -> Hash {
        let title = self.describe();
        self.with_headers(|headers| {
            let texts = headers.iter().map(|header| header.text);
            let own = [title.as_str(), self.text()]
                .into_iter()
                .chain(self.source.options.iter().copied());
            Hash::of(own.chain(texts))
        })
    }

    /// Returns the compiler options for a form.
    pub(super) fn options(&self, form: Form) -> Vec<String> {
        let mut options = form.options(self.source.suffix);
        options.push("--std=c++17".to_owned());
        options.extend(self.source.options.iter().map(|&option| option.to_owned()));
        options.extend(self.defines().map(|(name, value)| format!("-D{name}={}", value.text())));
        options
    }
}

impl Value {
    fn text(self) -> String {
        match self {
            Value::Int(value) => value.to_string(),
            Value::Word(word) => word.to_owned(),
            Value::Type(ty) => ty.name().to_owned(),
        }
    }
}

/// Generates the codebook of a type as a table in device memory.
fn points_text(points: Points) -> String {
    let (bits, ty, n, values): (u32, &str, usize, Vec<u64>) = match points {
        Points::OfEight(table) => (64, "u64", table.len(), table.to_vec()),
        Points::OfFour(table) => (32, "u32", table.len(), table.iter().map(|&x| x.into()).collect()),
    };
    let mut text =
        format!("#define POINTS points\n#define POINTS_BITS {bits}\n__device__ const {ty} points[{n}] = {{\n");
    for value in values {
        let _ = writeln!(text, "{value:#x},");
    }
    text + "};\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specialization_is_described_with_its_values() {
        let kernel = Kernel::new(&MUL_VEC, "mul_vec")
            .with_type("TYPE", GgmlType::Q4_K)
            .with_int("COLS", 2);
        assert_eq!(kernel.describe(), "mul_vec (mul_vec.cu, TYPE=q4_K, COLS=2)");
        let options = kernel.options(Form::Ptx(90));
        assert_eq!(
            options,
            [
                "--gpu-architecture=compute_90",
                "--std=c++17",
                "-DTYPE=q4_K",
                "-DCOLS=2"
            ]
        );
    }

    #[test]
    fn codebook_types_include_their_codebook() {
        let points = |ty| {
            Kernel::new(&COPIES, "get_rows")
                .with_type("A", ty)
                .with_headers(|h| h[HEADERS.len()].text.to_owned())
        };
        assert_eq!(points(GgmlType::Q4_K), "");
        assert!(points(GgmlType::IQ3_S).contains("u32 points[512]"));
        assert!(points(GgmlType::IQ1_M).contains("u64 points[2048]"));
    }
}
