//! Tensor types of the GGUF format: a table of names, ids, and block sizes. Ids of 100 and above belong to
//! ik_llama.cpp.
//!
//! Rows of IQ4_KS and IQ5_KS start with an f32, the scale of all blocks of the row. Kernels read blocks one by one, so
//! the loader copies the scale to each block. The blocks in memory are also types of the table, but no file has them.

use std::fmt;

/// Generates [`GgmlType`] from a table.
macro_rules! ggml_types {
    ($( $variant:ident = $id:literal, $name:literal, block $block:literal, bytes $bytes:literal; )*) => {
        /// Element type of a tensor in the GGUF format. The discriminant is the id stored in files.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
        #[repr(u32)]
        #[allow(non_camel_case_types)]
        pub enum GgmlType { $( $variant = $id, )* }

        impl GgmlType {
            /// All types in the order of their ids.
            pub const ALL: &'static [GgmlType] = &[ $( GgmlType::$variant, )* ];

            /// Returns the type with this id, or `None` if the id is unknown or was removed from the format.
            pub const fn from_id(id: u32) -> Option<GgmlType> {
                if id >= IN_MEMORY {
                    return None;
                }
                match id { $( $id => Some(GgmlType::$variant), )* _ => None }
            }

            /// Returns the position in [`ALL`](Self::ALL), as an index of tables. Ids have gaps.
            pub(crate) const fn index(self) -> usize {
                #[allow(non_camel_case_types)]
                enum Position { $( $variant, )* }
                match self { $( GgmlType::$variant => Position::$variant as usize, )* }
            }

            /// Returns the format's name of the type, such as `q4_K`.
            pub const fn name(self) -> &'static str {
                match self { $( GgmlType::$variant => $name, )* }
            }

            /// Returns the number of elements per block; 1 for plain types.
            pub const fn block_size(self) -> usize {
                match self { $( GgmlType::$variant => $block, )* }
            }

            /// Returns the size of a block in bytes.
            pub const fn block_bytes(self) -> usize {
                match self { $( GgmlType::$variant => $bytes, )* }
            }
        }
    };
}

ggml_types! {
    F32 = 0, "f32", block 1, bytes 4;
    F16 = 1, "f16", block 1, bytes 2;
    Q4_0 = 2, "q4_0", block 32, bytes 18;
    Q4_1 = 3, "q4_1", block 32, bytes 20;
    Q5_0 = 6, "q5_0", block 32, bytes 22;
    Q5_1 = 7, "q5_1", block 32, bytes 24;
    Q8_0 = 8, "q8_0", block 32, bytes 34;
    Q8_1 = 9, "q8_1", block 32, bytes 36;
    Q2_K = 10, "q2_K", block 256, bytes 84;
    Q3_K = 11, "q3_K", block 256, bytes 110;
    Q4_K = 12, "q4_K", block 256, bytes 144;
    Q5_K = 13, "q5_K", block 256, bytes 176;
    Q6_K = 14, "q6_K", block 256, bytes 210;
    Q8_K = 15, "q8_K", block 256, bytes 292;
    IQ2_XXS = 16, "iq2_xxs", block 256, bytes 66;
    IQ2_XS = 17, "iq2_xs", block 256, bytes 74;
    IQ3_XXS = 18, "iq3_xxs", block 256, bytes 98;
    IQ1_S = 19, "iq1_s", block 256, bytes 50;
    IQ4_NL = 20, "iq4_nl", block 32, bytes 18;
    IQ3_S = 21, "iq3_s", block 256, bytes 110;
    IQ2_S = 22, "iq2_s", block 256, bytes 82;
    IQ4_XS = 23, "iq4_xs", block 256, bytes 136;
    I8 = 24, "i8", block 1, bytes 1;
    I16 = 25, "i16", block 1, bytes 2;
    I32 = 26, "i32", block 1, bytes 4;
    I64 = 27, "i64", block 1, bytes 8;
    F64 = 28, "f64", block 1, bytes 8;
    IQ1_M = 29, "iq1_m", block 256, bytes 56;
    BF16 = 30, "bf16", block 1, bytes 2;
    TQ1_0 = 34, "tq1_0", block 256, bytes 54;
    TQ2_0 = 35, "tq2_0", block 256, bytes 66;
    MXFP4 = 39, "mxfp4", block 32, bytes 17;
    NVFP4 = 40, "nvfp4", block 64, bytes 36;
    Q1_0 = 41, "q1_0", block 128, bytes 18;
    Q2_0 = 42, "q2_0", block 64, bytes 18;
    IQ4_K = 139, "iq4_k", block 256, bytes 144;
    IQ5_K = 140, "iq5_k", block 256, bytes 176;
    IQ6_K = 141, "iq6_k", block 256, bytes 212;
    IQ4_KS = 144, "iq4_ks", block 256, bytes 136;
    IQ5_KS = 152, "iq5_ks", block 256, bytes 168;
    IQ4_KS_D = 0x8000_0090, "iq4_ks_d", block 256, bytes 140;
    IQ5_KS_D = 0x8000_0098, "iq5_ks_d", block 256, bytes 172;
}

/// First id of types that exist only in memory.
const IN_MEMORY: u32 = 0x8000_0000;

/// Number of types.
pub(crate) const N_TYPES: usize = GgmlType::ALL.len();

impl GgmlType {
    /// Returns the id stored in GGUF files.
    pub const fn id(self) -> u32 {
        self as u32
    }

    /// Returns the type of files with this name, ignoring case.
    pub fn from_name(name: &str) -> Option<GgmlType> {
        let mut of_files = Self::ALL.iter().copied().filter(|ty| ty.is_in_files());
        of_files.find(|ty| ty.name().eq_ignore_ascii_case(name))
    }

    /// Returns false for types that exist only in memory.
    pub const fn is_in_files(self) -> bool {
        self.id() < IN_MEMORY
    }

    /// Returns the number of bytes before the blocks of a row.
    pub const fn row_header(self) -> usize {
        match self {
            GgmlType::IQ4_KS | GgmlType::IQ5_KS => size_of::<f32>(),
            _ => 0,
        }
    }

    /// Returns the type in memory of weights of this type. Rows in memory have no [header](Self::row_header): each
    /// block starts with the header of its row. Types without a header do not change.
    pub const fn in_memory(self) -> GgmlType {
        match self {
            GgmlType::IQ4_KS => GgmlType::IQ4_KS_D,
            GgmlType::IQ5_KS => GgmlType::IQ5_KS_D,
            ty => ty,
        }
    }

    /// Returns true for types stored in blocks of several elements.
    pub const fn is_quantized(self) -> bool {
        self.block_size() > 1
    }

    /// Returns the size in bytes of a row of `n` elements. Returns `None` if `n` is not a multiple of the
    /// block size, or the size overflows.
    pub const fn row_bytes(self, n: usize) -> Option<usize> {
        if !n.is_multiple_of(self.block_size()) {
            return None;
        }
        match (n / self.block_size()).checked_mul(self.block_bytes()) {
            Some(bytes) => bytes.checked_add(self.row_header()),
            None => None,
        }
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_names_round_trip() {
        assert_eq!(GgmlType::ALL.len(), 42);
        for (i, &t) in GgmlType::ALL.iter().enumerate() {
            assert_eq!(t.index(), i);
            assert_eq!(GgmlType::from_id(t.id()), t.is_in_files().then_some(t));
            assert_eq!(GgmlType::from_name(t.name()), t.is_in_files().then_some(t));
        }
        for removed in [4, 5, 31, 32, 33, 36, 37, 38, 43, 138, 142, 143, 145, 151, 153, u32::MAX] {
            assert_eq!(GgmlType::from_id(removed), None);
        }
    }

    #[test]
    fn rows_must_be_whole_blocks() {
        assert_eq!(GgmlType::Q4_K.row_bytes(512), Some(288));
        assert_eq!(GgmlType::Q4_K.row_bytes(255), None);
        assert_eq!(GgmlType::F32.row_bytes(usize::MAX), None);
    }

    #[test]
    fn row_header_counts_once_per_row() {
        assert_eq!(GgmlType::IQ4_KS.row_bytes(512), Some(4 + 2 * 136));
        assert_eq!(GgmlType::IQ5_KS.row_bytes(256), Some(4 + 168));
        assert_eq!(GgmlType::IQ4_KS.row_bytes(128), None);
    }

    #[test]
    fn blocks_in_memory_include_row_header() {
        let with_header: Vec<_> = GgmlType::ALL.iter().filter(|ty| ty.row_header() > 0).collect();
        assert_eq!(with_header, [&GgmlType::IQ4_KS, &GgmlType::IQ5_KS]);
        for &ty in GgmlType::ALL {
            let in_memory = ty.in_memory();
            assert_eq!(in_memory == ty, ty.row_header() == 0, "{ty}");
            assert_eq!(
                (in_memory.block_size(), in_memory.row_header()),
                (ty.block_size(), 0),
                "{ty}"
            );
            assert_eq!(in_memory.block_bytes(), ty.block_bytes() + ty.row_header(), "{ty}");
            assert!(
                ty.is_in_files() || GgmlType::ALL.iter().any(|of| of.in_memory() == ty && *of != ty),
                "{ty}"
            );
        }
    }
}
