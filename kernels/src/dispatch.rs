//! Kernel tables per instruction set, and the choice of one at run time from the CPU and `LLAMA_CPU_ISA`.

mod attention_tiles;
mod integers;
mod tiles;

use std::sync::OnceLock;

pub(crate) use attention_tiles::AttentionTiles;
pub(crate) use integers::{GroupKernels, IntTypeKernels};
use integers::{IntKernels, PairKernels};
use tiles::{ColumnTileKernels, FloatTileKernels, TileKernels};

use crate::GgmlType;
use crate::generic::attention::{self, Brain, Element, Float, Half, InPlace, ScaledByte, Scores, Softmax, Values};
use crate::generic::blocks;
use crate::generic::decode_attention::{self, Heads, QueryTile};
use crate::generic::float_panels::{self, PanelTile, PanelTiles};
use crate::generic::products::{self, FloatFormat, Product, Tile, Tiles};
use crate::generic::recurrent::{self, ChannelScan, Scan, Wkv6, Wkv7};
use crate::generic::{rope, rows};
use crate::layout::block::Block;
use crate::layout::decode::{Decode, Encode};
use crate::quants::{self, for_each_block};
use crate::simd::portable::Portable;
#[cfg(target_arch = "x86_64")]
use crate::simd::x86_64::{amx, avx2::Avx2, avx512::Avx512, bf16_dots};
use crate::types::N_TYPES;

/// Instruction sets with separate kernels, in ascending order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Isa {
    /// Portable Rust code, compiled for the target's baseline.
    Scalar,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX2 with AVX-VNNI.
    AvxVnni,
    /// AVX-512 F, BW, DQ, and VL.
    Avx512,
    /// AVX-512 with VNNI.
    Avx512Vnni,
    /// AVX-512 with VNNI and BF16, if bf16 dot products are faster than f32 multiply-adds (AMD since Zen 4).
    Avx512Bf16,
    /// AVX-512 with VNNI and BF16, and AMX with bf16 and int8 tiles, if the operating system permits its use.
    AmxBf16,
}

impl Isa {
    /// All instruction sets in ascending order.
    pub const ALL: [Isa; 7] = [
        Isa::Scalar,
        Isa::Avx2,
        Isa::AvxVnni,
        Isa::Avx512,
        Isa::Avx512Vnni,
        Isa::Avx512Bf16,
        Isa::AmxBf16,
    ];

    /// Returns the lower-case name, as accepted by `LLAMA_CPU_ISA`.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::AvxVnni => "avx-vnni",
            Isa::Avx512 => "avx512",
            Isa::Avx512Vnni => "avx512-vnni",
            Isa::Avx512Bf16 => "avx512-bf16",
            Isa::AmxBf16 => "amx-bf16",
        }
    }

    /// Parses a [name](Isa::name), ignoring case.
    pub fn from_name(name: &str) -> Option<Isa> {
        Isa::ALL.into_iter().find(|isa| isa.name().eq_ignore_ascii_case(name))
    }

    /// Returns true if this CPU can run the kernels. For AMX, this requests permission from the operating
    /// system.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => Isa::Avx2.is_available() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => Isa::Avx512.is_available() && is_x86_feature_detected!("avx512vnni"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 => Isa::Avx512Vnni.is_available() && bf16_dots::is_fast(),
            #[cfg(target_arch = "x86_64")]
            Isa::AmxBf16 => {
                Isa::Avx512Vnni.is_available() && is_x86_feature_detected!("avx512bf16") && amx::is_available()
            }
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }
}

/// Returns the instruction set in use: the highest that the CPU supports, limited by the environment variable
/// `LLAMA_CPU_ISA`. The variable is ignored if it is not a [name](Isa::name); the command line rejects these values.
pub fn isa() -> Isa {
    kernels().isa
}

/// Returns the kernels in use, chosen on the first call.
#[inline]
pub(crate) fn kernels() -> &'static Kernels {
    static SELECTED: OnceLock<&'static Kernels> = OnceLock::new();
    SELECTED.get_or_init(|| {
        let cap = std::env::var("LLAMA_CPU_ISA").unwrap_or_default();
        let cap = Isa::from_name(&cap);
        let usable = |isa: &Isa| cap.is_none_or(|cap| *isa <= cap) && isa.is_available();
        let best = Isa::ALL.into_iter().rfind(usable).unwrap_or(Isa::Scalar);
        kernels_of(best)
    })
}

/// Returns the kernels of an instruction set. The CPU must support it before any kernel is called.
pub(crate) fn kernels_of(isa: Isa) -> &'static Kernels {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => &AVX2,
        #[cfg(target_arch = "x86_64")]
        Isa::AvxVnni => &AVX_VNNI,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => &AVX512,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni => &AVX512_VNNI,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16 => &AVX512_BF16,
        #[cfg(target_arch = "x86_64")]
        Isa::AmxBf16 => &AMX_BF16,
        _ => &scalar::KERNELS,
    }
}

/// Kernels that depend on the type of one operand.
pub(crate) struct TypeKernels {
    /// Matmul with one column.
    pub matvec: unsafe fn(&Product),
    /// Matmul with several columns.
    pub matmul: unsafe fn(&Product),
    /// Matmul with many columns, which adds in a different order.
    pub panels: unsafe fn(&Product),
    pub dequantize: unsafe fn(*const u8, *mut f32, usize),
    pub quantize: Option<QuantizeRow>,
}

/// Attention kernels.
pub(crate) struct AttentionTable {
    /// Kernels for many queries per head and f32 rows; the kernel at index `n - 1` takes `n` queries.
    pub scores: [unsafe fn(&Scores); 3],
    pub values: [unsafe fn(&Values); 6],
    pub f32: RowKernels,
    pub f16: RowKernels,
    pub bf16: RowKernels,
    pub q8_0: RowKernels,
    pub softmax_step: unsafe fn(&Softmax),
}

/// Kernels for a few queries per head and rows of one type.
pub(crate) struct RowKernels {
    pub scores: unsafe fn(&Scores, &Heads, &[QueryTile]),
    pub values: unsafe fn(&Values, &Heads, &[QueryTile]),
}

type QuantizeRow = unsafe fn(*const f32, *mut u8, usize);

/// Passes the list of row kernels to the macro `$then`.
macro_rules! row_kernels {
    ($then:ident!($($args:tt)*)) => {
        $then! { ($($args)*)
            fn rows::dot(a: *const f32, b: *const f32, n: usize) -> f32;
            fn rows::sum(x: *const f32, n: usize) -> f32;
            fn rows::sum_of_squares(x: *const f32, n: usize) -> f32;
            fn rows::axpy(a: f32, x: *const f32, y: *mut f32, n: usize) -> ();
            fn rows::axpy_rows(a: *const f32, m: usize, x: *const f32, stride: usize, y: *mut f32, n: usize) -> ();
            fn rows::scale_add_outer(c: *const f32, a: *const f32, m: usize, d: *const f32, x: *mut f32, n: usize) -> ();
            fn recurrent::scan(args: &Scan) -> ();
            fn recurrent::scan_channels(args: &ChannelScan) -> ();
            fn recurrent::wkv6(args: &Wkv6) -> ();
            fn recurrent::wkv7(args: &Wkv7) -> ();
            fn rows::scale(scale: f32, bias: f32, x: *const f32, out: *mut f32, n: usize) -> ();
            fn rows::softcap(cap: f32, x: *const f32, out: *mut f32, n: usize) -> ();
            fn rows::add(a: *const f32, b: *const f32, out: *mut f32, n: usize) -> ();
            fn rows::mul(a: *const f32, b: *const f32, out: *mut f32, n: usize) -> ();
            fn rows::exp(x: *const f32, out: *mut f32, n: usize) -> ();
            fn rows::sigmoid(x: *const f32, out: *mut f32, n: usize) -> ();
            fn rows::silu(x: *const f32, out: *mut f32, n: usize) -> ();
            fn rows::softplus(x: *const f32, out: *mut f32, n: usize) -> ();
            fn rows::gelu(x: *const f32, out: *mut f32, n: usize) -> ();
            fn rows::gelu_erf(x: *const f32, out: *mut f32, n: usize) -> ();
            fn rows::silu_mul(gate: *const f32, up: *const f32, out: *mut f32, n: usize) -> ();
            fn rows::gelu_mul(gate: *const f32, up: *const f32, out: *mut f32, n: usize) -> ();
            fn rows::gelu_erf_mul(gate: *const f32, up: *const f32, out: *mut f32, n: usize) -> ();
            fn rows::rms_norm(x: *const f32, weight: *const f32, eps: f32, out: *mut f32, n: usize) -> ();
            fn rows::norm(x: *const f32, eps: f32, out: *mut f32, n: usize) -> ();
            fn rows::softmax(x: *mut f32, factor: f32, n: usize) -> ();
            fn rope::sin_cos_in_place(angles: *mut f32, magnitude: f32, cos: *mut f32, n: usize) -> ();
            fn rope::rotate_pairs(x: *mut f32, sin: *const f32, cos: *const f32, n: usize) -> ();
            fn rope::rotate_halves(x: *mut f32, sin: *const f32, cos: *const f32, n: usize) -> ();
        }
    };
}

macro_rules! define_kernels {
    (() $( fn $from:ident::$name:ident($($arg:ident: $ty:ty),*) -> $ret:ty; )*) => {
        /// All kernels of an instruction set.
        pub(crate) struct Kernels {
            pub isa: Isa,
            pub types: [Option<TypeKernels>; N_TYPES],
            pub attention: AttentionTable,
            pub int: &'static IntKernels,
            /// Kernels for weights of floating-point types and bf16 activations, if they are faster than f32.
            pub float_tiles: Option<&'static FloatTileKernels>,
            /// Kernels for AMX tiles, if available.
            pub tile_unit: Option<&'static TileKernels>,
            /// Attention kernels for many queries per page, if they are faster.
            pub attention_tiles: Option<&'static AttentionTiles>,
            $( pub $name: unsafe fn($($ty),*) -> $ret, )*
        }
    };
}
row_kernels!(define_kernels!());

impl Kernels {
    /// Returns the kernels of a type.
    ///
    /// # Panics
    /// Panics if the type has no kernels; see [`can_dequantize`](crate::can_dequantize).
    #[inline]
    pub(crate) fn for_type(&'static self, ty: GgmlType) -> &'static TypeKernels {
        self.find(ty).unwrap_or_else(|| panic!("{ty} has no kernels"))
    }

    /// Returns the kernels of a type, or `None`.
    #[inline]
    pub(crate) fn find(&'static self, ty: GgmlType) -> Option<&'static TypeKernels> {
        self.types[ty.index()].as_ref()
    }

    /// Returns the attention kernels for many queries per page.
    ///
    /// # Panics
    /// Panics if this instruction set has no such kernels.
    pub(crate) fn tiled_attention(&'static self) -> &'static AttentionTiles {
        self.attention_tiles
            .unwrap_or_else(|| panic!("{:?} has no tiled attention", self.isa))
    }

    /// Returns the AMX kernels that multiply interleaved rows of a type by a few columns, or `None`.
    pub(crate) fn column_tiles(&'static self, ty: GgmlType) -> Option<&'static ColumnTileKernels> {
        self.tile_unit?.columns[ty.index()].as_ref()
    }

    /// Returns the kernels that multiply 16-bit floats in pairs of 16-bit integers.
    ///
    /// # Panics
    /// Panics if this instruction set has no such kernels.
    pub(crate) fn pair_kernels(&'static self) -> &'static PairKernels {
        let pairs = self.int.pairs.as_ref();
        pairs.unwrap_or_else(|| panic!("{:?} has no kernels for pairs", self.isa))
    }

    /// Returns the kernels for bf16 activations and weights of floating-point types.
    ///
    /// # Panics
    /// Panics if this instruction set has no such kernels.
    pub(crate) fn bf16_kernels(&'static self) -> &'static FloatTileKernels {
        self.float_tiles
            .unwrap_or_else(|| panic!("{:?} has no bf16 kernels", self.isa))
    }

    /// Returns the kernels for AMX tiles.
    ///
    /// # Panics
    /// Panics if this instruction set has no such kernels.
    pub(crate) fn amx_kernels(&'static self) -> &'static TileKernels {
        self.tile_unit
            .unwrap_or_else(|| panic!("{:?} has no tile unit", self.isa))
    }
}

/// Builds the table of kernels of all types, indexed by [`GgmlType::index`].
macro_rules! type_table {
    (() $( $block:ident [$($quantize:ident)?] $unpack:tt $interleave:tt; )*) => { {
        let mut table = [const { None }; N_TYPES];
        $(
            let quantize = type_table!(@ $block $($quantize)?);
            table[<quants::$block as Block>::TYPE.index()] = Some(type_kernels::<quants::$block>(quantize));
        )*
        table
    } };
    (@ $block:ident) => { None };
    (@ $block:ident quantize) => { Some(quantize_type::<quants::$block> as QuantizeRow) };
}

/// Instantiates the generic kernels for a register type in functions that enable its instructions.
macro_rules! instantiate {
    (($isa:ident, $module:ident, $V:ty, $integers:ident, [$($tile:literal)*], [$($panel_tile:literal)*], $attribute:meta)
        $( fn $from:ident::$name:ident($($arg:ident: $ty:ty),*) -> $ret:ty; )*) => {
        mod $module {
            use super::*;

            $(
                #[$attribute]
                unsafe fn $name($($arg: $ty),*) -> $ret {
                    // SAFETY: the caller upholds the contract of the callee; `$attribute` enables the
                    // instructions of `$V`.
                    unsafe { $from::$name::<$V>($($arg),*) }
                }
            )*

            #[$attribute]
            unsafe fn tile<const N: usize>(tile: &Tile) {
                // SAFETY: the caller upholds the contract of `products::tile`; `$attribute` enables the
                // instructions of `$V`.
                unsafe { products::tile::<$V, N>(tile) }
            }
            const TILES: &Tiles = &[$( tile::<$tile> ),*];

            #[$attribute]
            unsafe fn panel_tile<const N: usize>(tile: &PanelTile) {
                // SAFETY: the caller upholds the contract of `float_panels::tile`; `$attribute` enables the
                // instructions of `$V`.
                unsafe { float_panels::tile::<$V, N>(tile) }
            }
            const PANEL_TILES: &PanelTiles = &[$( panel_tile::<$panel_tile> ),*];

            #[$attribute]
            unsafe fn matvec<D: Decode<$V>>(product: &Product) {
                // SAFETY: the caller upholds the contract of `products::matvec`; `$attribute` enables the
                // instructions of `$V`.
                unsafe { products::matvec::<$V, D>(product) }
            }

            const fn float_format<D: Decode<$V>>() -> FloatFormat {
                FloatFormat {
                    ty: D::TYPE,
                    dequantize: dequantize_type::<D>,
                }
            }

            unsafe fn matmul<D: Decode<$V>>(product: &Product) {
                // SAFETY: the caller upholds the contract of `products::matmul`.
                unsafe { products::matmul(product, &const { float_format::<D>() }, TILES) }
            }

            unsafe fn panels<D: Decode<$V>>(product: &Product) {
                // SAFETY: the caller upholds the contract of `multiply_panels`.
                unsafe { multiply_panels(product, &const { float_format::<D>() }) }
            }

            #[$attribute]
            unsafe fn multiply_panels(product: &Product, format: &FloatFormat) {
                // SAFETY: the caller upholds the contract of `float_panels::multiply`; `$attribute` enables
                // the instructions of `$V`.
                unsafe { float_panels::multiply::<$V>(product, format, PANEL_TILES) }
            }

            #[$attribute]
            unsafe fn dequantize_type<D: Decode<$V>>(p: *const u8, out: *mut f32, n: usize) {
                // SAFETY: the caller upholds the contract of `blocks::dequantize`; `$attribute` enables the
                // instructions of `$V`.
                unsafe { blocks::dequantize::<$V, D>(p, out, n) }
            }

            #[$attribute]
            unsafe fn quantize_type<E: Encode<$V>>(x: *const f32, out: *mut u8, n: usize) {
                // SAFETY: the caller upholds the contract of `blocks::quantize`; `$attribute` enables the
                // instructions of `$V`.
                unsafe { blocks::quantize::<$V, E>(x, out, n) }
            }

            const fn type_kernels<D: Decode<$V>>(quantize: Option<QuantizeRow>) -> TypeKernels {
                TypeKernels {
                    matvec: matvec::<D>,
                    matmul: matmul::<D>,
                    panels: if float_panels::is_for(D::TYPE) { panels::<D> } else { matmul::<D> },
                    dequantize: dequantize_type::<D>,
                    quantize,
                }
            }

            #[$attribute]
            unsafe fn softmax_step(softmax: &Softmax) {
                // SAFETY: the caller upholds the contract of `attention::softmax_step`; `$attribute` enables
                // the instructions of `$V`.
                unsafe { attention::softmax_step::<$V, InPlace>(softmax) }
            }

            #[$attribute]
            unsafe fn scores<const N: usize>(scores: &Scores) {
                // SAFETY: the caller upholds the contract of `attention::scores`; `$attribute` enables the
                // instructions of `$V`.
                unsafe { attention::scores::<$V, N>(scores) }
            }

            #[$attribute]
            unsafe fn values<const N: usize>(values: &Values) {
                // SAFETY: the caller upholds the contract of `attention::values`; `$attribute` enables the
                // instructions of `$V`.
                unsafe { attention::values::<$V, Float, N>(values) }
            }

            #[$attribute]
            unsafe fn scores_by_rows<E: Element>(scores: &Scores, heads: &Heads, queries: &[QueryTile]) {
                // SAFETY: the caller upholds the contract of `scores_by_rows`; `$attribute` enables the
                // instructions of `$V`.
                unsafe { decode_attention::scores_by_rows::<$V, E>(scores, heads, queries) }
            }

            #[$attribute]
            unsafe fn values_by_rows<E: Element>(values: &Values, heads: &Heads, queries: &[QueryTile]) {
                // SAFETY: the caller upholds the contract of `values_by_rows`; `$attribute` enables the
                // instructions of `$V`.
                unsafe { decode_attention::values_by_rows::<$V, E>(values, heads, queries) }
            }

            const fn row_order_kernels<E: Element>() -> RowKernels {
                RowKernels {
                    scores: scores_by_rows::<E>,
                    values: values_by_rows::<E>,
                }
            }

            pub(super) const KERNELS: Kernels = Kernels {
                isa: Isa::$isa,
                types: for_each_block!(type_table!()),
                attention: AttentionTable {
                    scores: [scores::<1>, scores::<2>, scores::<3>],
                    values: [
                        values::<1>,
                        values::<2>,
                        values::<3>,
                        values::<4>,
                        values::<5>,
                        values::<6>,
                    ],
                    f32: row_order_kernels::<Float>(),
                    f16: row_order_kernels::<Half>(),
                    bf16: row_order_kernels::<Brain>(),
                    q8_0: row_order_kernels::<ScaledByte>(),
                    softmax_step,
                },
                int: &integers::$integers::KERNELS,
                float_tiles: None,
                tile_unit: None,
                attention_tiles: None,
                $( $name, )*
            };
        }
    };
}

row_kernels!(instantiate!(Scalar, scalar, Portable, scalar, [1 2], [1 2], inline(never)));
#[cfg(target_arch = "x86_64")]
row_kernels!(instantiate!(Avx2, avx2, Avx2, avx2, [1 2 3], [1 2 3 4 5 6], target_feature(enable = "avx2,fma,f16c")));
#[cfg(target_arch = "x86_64")]
row_kernels!(instantiate!(
    Avx512,
    avx512,
    Avx512,
    avx512,
    [1 2 3 4 5 6],
    [1 2 3 4 5 6 7 8 9 10 11 12],
    target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")
));

/// AVX2 kernels, with integer attention for many queries.
#[cfg(target_arch = "x86_64")]
static AVX2: Kernels = Kernels {
    attention_tiles: Some(&attention_tiles::avx2::KERNELS),
    ..avx2::KERNELS
};
#[cfg(target_arch = "x86_64")]
static AVX512: Kernels = Kernels {
    attention_tiles: Some(&attention_tiles::avx512::KERNELS),
    ..avx512::KERNELS
};

/// AVX2 kernels with VNNI for integers; f32 kernels are shared with AVX2.
#[cfg(target_arch = "x86_64")]
static AVX_VNNI: Kernels = Kernels {
    isa: Isa::AvxVnni,
    int: &integers::avx_vnni::KERNELS,
    attention_tiles: Some(&attention_tiles::avx2::KERNELS),
    ..avx2::KERNELS
};
#[cfg(target_arch = "x86_64")]
static AVX512_VNNI: Kernels = Kernels {
    isa: Isa::Avx512Vnni,
    int: &integers::avx512_vnni::KERNELS,
    attention_tiles: Some(&attention_tiles::avx512_vnni::KERNELS),
    ..avx512::KERNELS
};

/// AVX512-VNNI kernels with bf16 dot products for many columns and weights of floating-point types.
#[cfg(target_arch = "x86_64")]
static AVX512_BF16: Kernels = Kernels {
    isa: Isa::Avx512Bf16,
    int: &integers::avx512_vnni::KERNELS,
    float_tiles: Some(&tiles::bf16_dots::KERNELS),
    attention_tiles: Some(&attention_tiles::avx512_vnni::KERNELS),
    ..avx512::KERNELS
};

/// AVX512-VNNI kernels with AMX tiles for matmuls of several columns and for attention.
#[cfg(target_arch = "x86_64")]
static AMX_BF16: Kernels = Kernels {
    isa: Isa::AmxBf16,
    int: &integers::avx512_vnni::KERNELS,
    float_tiles: Some(&tiles::amx_floats::KERNELS),
    tile_unit: Some(&tiles::amx::KERNELS),
    attention_tiles: Some(&tiles::amx::ATTENTION),
    ..avx512::KERNELS
};

/// Tile kernels with a software model of AMX, which any CPU can run.
#[cfg(test)]
pub(crate) static TILE_MODEL: Kernels = Kernels {
    isa: Isa::AmxBf16,
    float_tiles: Some(&tiles::model_floats::KERNELS),
    tile_unit: Some(&tiles::model::KERNELS),
    attention_tiles: Some(&tiles::model::ATTENTION),
    ..scalar::KERNELS
};

/// Integer attention kernels that run on any CPU.
#[cfg(test)]
pub(crate) static INT_ATTENTION_MODEL: Kernels = Kernels {
    attention_tiles: Some(&attention_tiles::scalar::KERNELS),
    ..scalar::KERNELS
};

/// VNNI kernels that are emulated with AVX2.
#[cfg(all(test, target_arch = "x86_64"))]
pub(crate) static VNNI_MODEL: Kernels = Kernels {
    isa: Isa::AvxVnni,
    int: &integers::vnni_model::KERNELS,
    ..avx2::KERNELS
};
