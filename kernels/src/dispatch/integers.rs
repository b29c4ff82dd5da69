//! Integer matmul kernels for AVX2 (also used with AVX-512) and for VNNI.

use crate::GgmlType;
use crate::generic::gemm_u8;
use crate::generic::group_panels::{self, GroupFormat, MultiplyGroups};
use crate::generic::int_products::{self, ColumnKernels, IntProduct, Sum, Unpacked};
use crate::generic::integers::{self, I16Chunk};
use crate::generic::interleaved8;
use crate::generic::interleaved8_zmm;
use crate::generic::pack::{
    self, ByteValues, FillGroups, GROUPS, I8Values, I16Values, IntFormat, PanelChunk, PanelValues, RowChunk, RowFormat,
    ShiftedI8Values, UnpackRow,
};
use crate::generic::pair_panels::{self, PairProduct};
use crate::generic::panel_products::{self, PanelProduct};
use crate::generic::products::FloatFormat;
use crate::generic::rows_zmm;
use crate::generic::u8_chunks;
use crate::layout::block::Block;
use crate::layout::groups::{UnpackGroup, bytes_in_group};
use crate::layout::runs::{CHUNK, Unpack};
use crate::limits::{AVX2_PANEL_COLUMNS, AVX2_PANEL_COLUMNS_OF_BYTES, FAST_COLUMNS, PANEL_COLUMNS};
use crate::quants::{self, for_each_block};
use crate::simd::IntSimd;
use crate::simd::dots::ByteDots;
use crate::simd::portable_int::PortableInt;
#[cfg(target_arch = "x86_64")]
use crate::simd::x86_64::dots512::{SeparateDots512, VnniDots512};
#[cfg(all(test, target_arch = "x86_64"))]
use crate::simd::x86_64::int256::VnniModelInt;
#[cfg(target_arch = "x86_64")]
use crate::simd::x86_64::int256::{Avx2Int, Avx512Int, Avx512VnniInt, AvxVnniInt};
use crate::types::N_TYPES;

/// All integer kernels of an instruction set.
pub(crate) struct IntKernels {
    types: [Option<IntTypeKernels>; N_TYPES],
    /// Maximum columns for the [row-group kernels](GroupKernels), which multiply a few columns at a time;
    /// more columns use panels. `usize::MAX` disables panels, whose registers have half the width.
    pub group_columns: usize,
    /// [`group_columns`](IntKernels::group_columns) for weights stored as whole bytes, which hardly need unpacking.
    pub group_columns_of_bytes: usize,
    /// Quantizes a row of activations to 16-bit integers.
    pub quantize_i16: unsafe fn(*const f32, usize, *mut u8),
    /// Quantizes a row of activations to unsigned 8-bit integers.
    pub quantize_u8: unsafe fn(*const f32, usize, *mut u8),
    /// Whether [`dots`](IntKernels::dots) is the fastest matmul with many columns for all types. If false,
    /// this holds only for types whose sums fit 16 bits.
    pub prefers_u8: bool,
    /// Multiplies weights of any type by unsigned 8-bit activations.
    pub dots: unsafe fn(&PanelProduct),
    /// Multiplies row groups of any type by [`GROUP_PANEL_COLUMNS`](group_panels::GROUP_PANEL_COLUMNS) columns or
    /// more, if that is as fast as the kernels of the types.
    pub group_panels: Option<MultiplyGroups>,
    /// Multiplies panels by 16-bit activations.
    pub panels_i16: unsafe fn(&PanelProduct),
    /// Kernels for 16-bit floats, if they are faster than f32.
    pub pairs: Option<PairKernels>,
}

/// Matmuls of 16-bit floats in pairs of 16-bit integers.
pub(crate) struct PairKernels {
    /// Quantizes a row of activations.
    pub quantize: unsafe fn(*const f32, usize, *mut u8),
    pub multiply: unsafe fn(&PairProduct, &FloatFormat),
}

/// Integer kernels that depend on the type of the weights.
pub(crate) struct IntTypeKernels {
    /// Matmul with one column.
    pub matvec: unsafe fn(&IntProduct),
    /// Matmul with several columns; each column has the same bits as in `matvec`.
    pub matmul: unsafe fn(&IntProduct),
    /// Unpacks a chunk of a row for a panel.
    pub unpack: UnpackRow,
    pub integers: IntFormat,
    /// Kernels for interleaved rows, if the type has that layout.
    pub groups: Option<GroupKernels>,
}

/// Integer kernels for row groups.
pub(crate) struct GroupKernels {
    /// Matmuls with 1, 2, ... columns, with the same bits as the panel kernels. More columns are divided, or
    /// multiplied by [`IntKernels::group_panels`].
    pub columns: &'static [unsafe fn(&IntProduct)],
    pub fill: FillGroups,
    /// Size of a chunk of a row group in bytes.
    pub chunk_bytes: usize,
}

impl IntKernels {
    /// Returns the kernels of a type, or `None`.
    #[inline]
    pub(crate) fn find(&'static self, ty: GgmlType) -> Option<&'static IntTypeKernels> {
        self.types[ty.index()].as_ref()
    }

    /// Returns the maximum columns for the row-group kernels of a type.
    #[inline]
    pub(crate) fn max_group_columns(&self, ty: GgmlType) -> usize {
        if ty.block_bytes() >= ty.block_size() {
            self.group_columns_of_bytes
        } else {
            self.group_columns
        }
    }
}

/// Builds the table of kernels of all types that can be unpacked, indexed by [`GgmlType::index`].
macro_rules! type_table {
    (() $( $block:ident $quantize:tt [$($unpack:ident)?] $interleave:tt; )*) => { {
        let mut table = [const { None }; N_TYPES];
        $( type_table!(@ table $block $($unpack)? $interleave); )*
        table
    } };
    (@ $table:ident $block:ident []) => {};
    (@ $table:ident $block:ident unpack []) => {
        $table[<quants::$block as Block>::TYPE.index()] = Some(type_kernels::<quants::$block>(None));
    };
    (@ $table:ident $block:ident unpack [interleave]) => {
        let groups = Some(group_kernels::<quants::$block>());
        $table[<quants::$block as Block>::TYPE.index()] = Some(type_kernels::<quants::$block>(groups));
    };
}

/// Instantiates [`PairKernels`] that multiply `$n` columns at a time.
macro_rules! pair_kernels {
    ($D:ty, $n:literal, $attribute:meta) => {
        #[$attribute]
        unsafe fn quantize_pairs(x: *const f32, k: usize, out: *mut u8) {
            // SAFETY: the caller upholds the contract of `pair_panels::quantize`; `$attribute` enables the
            // instructions of `$D`.
            unsafe { pair_panels::quantize::<<$D as ByteDots>::Float>(x, k, out) }
        }

        #[$attribute]
        unsafe fn multiply_pairs(product: &PairProduct, format: &FloatFormat) {
            // SAFETY: the caller upholds the contract of `pair_panels::multiply`; `$attribute` enables the
            // instructions of `$D`.
            unsafe { pair_panels::multiply::<$D, $n>(product, format) }
        }

        const PAIRS: PairKernels = PairKernels {
            quantize: quantize_pairs,
            multiply: multiply_pairs,
        };
    };
}

/// Instantiates the matmuls with many columns and the quantization of their activations. `$V` unpacks
/// weights, `$D` multiplies.
macro_rules! products {
    ($V:ty, $D:ty, $attribute:meta) => {
        #[$attribute]
        unsafe fn quantize_u8(x: *const f32, k: usize, out: *mut u8) {
            // SAFETY: the caller upholds the contract of `u8_chunks::quantize_u8`; `$attribute` enables the
            // instructions of `$V` and `$D`.
            unsafe { u8_chunks::quantize_u8::<$V, <$D as ByteDots>::Float>(x, k, out) }
        }

        #[$attribute]
        unsafe fn dots(product: &PanelProduct) {
            // SAFETY: the caller upholds the contract of `gemm_u8::multiply`; `$attribute` enables the
            // instructions of `$V` and `$D`.
            unsafe { gemm_u8::multiply::<$V, $D>(product) }
        }

        #[$attribute]
        unsafe fn panels_i16(product: &PanelProduct) {
            // SAFETY: the caller upholds the contract of `panel_products::multiply`; `$attribute` enables the
            // instructions of `$V`.
            unsafe { panel_products::multiply::<$V>(product) }
        }
    };
}

/// Instantiates the generic integer kernels for a register type in functions that enable its instructions.
///
/// - `$groups`: numbers of columns multiplied at a time by row groups.
/// - `$most`, `$most_of_bytes`: see [`IntKernels::group_columns`].
/// - `$rows`: numbers of columns multiplied at a time by rows in file layout.
macro_rules! instantiate {
    ($module:ident, $V:ty, [$($groups:literal)*], $most:expr, $most_of_bytes:expr, [$($rows:literal)*], $attribute:meta) => {
        pub(super) mod $module {
            use super::*;

            products!($V, $V, $attribute);
            pair_kernels!($V, 6, $attribute);

            #[$attribute]
            unsafe fn columns<D: UnpackGroup<$V>, const N: usize>(product: &IntProduct) {
                // SAFETY: the caller upholds the contract of `interleaved8::multiply`; `$attribute` enables
                // the instructions of `$V`.
                unsafe { interleaved8::multiply::<$V, D, N>(product) }
            }

            #[$attribute]
            pub(super) unsafe fn quantize_i16(x: *const f32, k: usize, out: *mut u8) {
                // SAFETY: the caller upholds the contract of `integers::quantize_i16`; `$attribute` enables
                // the instructions of `$V`.
                unsafe { integers::quantize_i16::<$V>(x, k, out) }
            }

            #[$attribute]
            unsafe fn unpack<D: Unpack<$V>>(p: *const u8, runs: usize, to: &mut RowChunk) {
                // SAFETY: the caller upholds the contract of `pack::unpack_row`; `$attribute` enables the
                // instructions of `$V`.
                unsafe { pack::unpack_row::<$V, D>(p, runs, to) }
            }

            #[$attribute]
            unsafe fn add_columns<const N: usize>(w: &Unpacked, x: *const I16Chunk, x_stride: usize, sums: *mut Sum) {
                // SAFETY: the caller upholds the contract of `int_products::add_columns`; `$attribute`
                // enables the instructions of `$V`.
                unsafe { int_products::add_columns::<$V, N>(w, x, x_stride, sums) }
            }
            const COLUMNS: &ColumnKernels = &[$( add_columns::<$rows> ),*];

            #[$attribute]
            pub(super) unsafe fn matvec<D: Unpack<$V>>(product: &IntProduct) {
                // SAFETY: the caller upholds the contract of `int_products::matvec`; `$attribute` enables the
                // instructions of `$V`.
                unsafe { int_products::matvec::<$V, D>(product) }
            }

            #[$attribute]
            unsafe fn multiply_rows(product: &IntProduct, format: &RowFormat) {
                // SAFETY: the caller upholds the contract of `int_products::matmul`; `$attribute` enables the
                // instructions of `$V`.
                unsafe { int_products::matmul::<$V>(product, COLUMNS, format) }
            }

            unsafe fn matmul<D: Unpack<$V>>(product: &IntProduct) {
                // SAFETY: the caller upholds the contract of `multiply_rows`.
                unsafe { multiply_rows(product, &const { RowFormat::of::<$V, D>(unpack::<D>) }) }
            }

            #[$attribute]
            unsafe fn fill_panel<D: UnpackGroup<$V>, F: PanelValues>(
                groups: [*const u8; GROUPS],
                runs: usize,
                to: &mut PanelChunk<F>,
            ) {
                // SAFETY: the caller upholds the contract of `interleaved8::fill_panel`; `$attribute` enables
                // the instructions of `$V`.
                unsafe { interleaved8::fill_panel::<$V, D, F>(groups, runs, to) }
            }

            pub(super) const fn group_kernels<D: UnpackGroup<$V>>() -> GroupKernels {
                GroupKernels {
                    columns: &const { [$( columns::<D, $groups> ),*] },
                    fill: FillGroups {
                        words: fill_panel::<D, I16Values>,
                        signed: fill_panel::<D, I8Values>,
                        shifted: pack::no_panel,
                        bytes: pack::no_panel,
                    },
                    chunk_bytes: bytes_in_group::<D>(CHUNK),
                }
            }

            pub(super) const fn type_kernels<D: Unpack<$V>>(groups: Option<GroupKernels>) -> IntTypeKernels {
                IntTypeKernels {
                    // For arrays, unpacking in registers saves at most 20 %, too little to justify the code.
                    matvec: if <$V>::UNROLLED { matvec::<D> } else { matmul::<D> },
                    matmul: matmul::<D>,
                    unpack: unpack::<D>,
                    integers: IntFormat::of::<$V, D>(),
                    groups,
                }
            }

            /// Integer kernels, indexed by [`GgmlType::index`].
            pub(super) const TYPES: [Option<IntTypeKernels>; N_TYPES] = for_each_block!(type_table!());

            pub(in crate::dispatch) static KERNELS: IntKernels = IntKernels {
                types: TYPES,
                group_columns: $most,
                group_columns_of_bytes: $most_of_bytes,
                quantize_i16,
                quantize_u8,
                prefers_u8: <$V>::HAS_DOT4,
                dots,
                group_panels: None,
                panels_i16,
                pairs: if <$V>::UNROLLED { Some(PAIRS) } else { None },
            };
        }
    };
}

/// AVX-512 without VNNI: 512-bit matmuls with many columns; everything else uses AVX2.
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512 {
    use super::*;

    products!(
        Avx512Int,
        SeparateDots512,
        target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")
    );

    pub(in crate::dispatch) static KERNELS: IntKernels = IntKernels {
        types: avx2::TYPES,
        group_columns: FAST_COLUMNS,
        group_columns_of_bytes: FAST_COLUMNS,
        quantize_i16: avx2::quantize_i16,
        quantize_u8,
        prefers_u8: false,
        dots,
        group_panels: None,
        panels_i16,
        pairs: None,
    };
}

/// Instantiates the VNNI kernels. Unpacking and code bound by it is shared with AVX2.
///
/// - `$matvec` multiplies rows of type `D` by one column.
/// - `$fill` fills a panel from row groups of type `D`, and `$fill_bytes` a panel of unsigned bytes.
/// - `$group_panels`: see [`IntKernels::group_panels`].
/// - `$pairs`: see `pair_kernels`.
#[cfg(target_arch = "x86_64")]
macro_rules! instantiate_vnni {
    ($module:ident, $V:ty, $D:ty, $multiply:path, [$($n:literal)*], $matvec:path, $fill:path, $fill_bytes:path, $group_panels:expr, $most:expr, $pairs:literal, $attribute:meta) => {
        pub(super) mod $module {
            use super::avx2::quantize_i16;
            use super::*;

            products!($V, $D, $attribute);
            pair_kernels!($D, $pairs, $attribute);

            #[$attribute]
            unsafe fn columns<D: UnpackGroup<$V>, const N: usize>(product: &IntProduct) {
                // SAFETY: the caller upholds the contract of `$multiply`; `$attribute` enables the
                // instructions of `$V` and `$D`.
                unsafe { $multiply(product) }
            }

            #[$attribute]
            unsafe fn matvec<D: Unpack<$V> + Unpack<Avx2Int>>(product: &IntProduct) {
                // SAFETY: the caller upholds the contract of `$matvec`; `$attribute` enables the instructions
                // of `$V` and `$D`.
                unsafe { $matvec(product) }
            }

            const fn type_kernels<D: Unpack<$V> + Unpack<Avx2Int>>(groups: Option<GroupKernels>) -> IntTypeKernels {
                IntTypeKernels {
                    matvec: matvec::<D>,
                    ..avx2::type_kernels::<D>(groups)
                }
            }

            #[$attribute]
            unsafe fn fill_panel<D: UnpackGroup<$V>>(
                groups: [*const u8; GROUPS],
                runs: usize,
                to: &mut PanelChunk<ShiftedI8Values>,
            ) {
                // SAFETY: the caller upholds the contract of `$fill`; `$attribute` enables the instructions
                // of `$V` and `$D`.
                unsafe { $fill(groups, runs, to) }
            }

            const fn group_kernels<D: UnpackGroup<$V> + UnpackGroup<Avx2Int>>() -> GroupKernels {
                let base = avx2::group_kernels::<D>();
                GroupKernels {
                    columns: &const { [$( columns::<D, $n> ),*] },
                    fill: FillGroups {
                        signed: pack::no_panel,
                        shifted: fill_panel::<D>,
                        bytes: $fill_bytes,
                        ..base.fill
                    },
                    ..base
                }
            }

            pub(in crate::dispatch) static KERNELS: IntKernels = IntKernels {
                types: for_each_block!(type_table!()),
                group_columns: $most,
                group_columns_of_bytes: $most,
                quantize_i16,
                quantize_u8,
                prefers_u8: <$V>::HAS_DOT4,
                dots,
                group_panels: $group_panels,
                panels_i16,
                pairs: Some(PAIRS),
            };
        }
    };
}

/// Instantiates [`group_panels`] for a register type.
///
/// - `$multiply` multiplies row groups by columns.
/// - `$fill` fills its panels from row groups of type `D`.
#[cfg(target_arch = "x86_64")]
macro_rules! instantiate_panels {
    ($module:ident, $V:ty, $multiply:path, $fill:path, $attribute:meta) => {
        mod $module {
            use super::*;

            #[$attribute]
            pub(super) unsafe fn fill<D: UnpackGroup<$V>>(
                groups: [*const u8; GROUPS],
                runs: usize,
                to: &mut PanelChunk<ByteValues>,
            ) {
                // SAFETY: the caller upholds the contract of `$fill`; `$attribute` enables the instructions of
                // `$V` and of the registers that `$fill` uses.
                unsafe { $fill(groups, runs, to) }
            }

            #[$attribute]
            pub(super) unsafe fn multiply(product: &IntProduct, format: &GroupFormat) {
                // SAFETY: the caller upholds the contract of `$multiply`; `$attribute` enables the instructions of
                // the registers that `$multiply` uses.
                unsafe { $multiply(product, format) }
            }
        }
    };
}

instantiate!(scalar, PortableInt, [1], FAST_COLUMNS, FAST_COLUMNS, [1 2], inline(never));
#[cfg(target_arch = "x86_64")]
instantiate!(
    avx2,
    Avx2Int,
    [1 2 3 4],
    AVX2_PANEL_COLUMNS - 1,
    AVX2_PANEL_COLUMNS_OF_BYTES - 1,
    [1 2 3 4],
    target_feature(enable = "avx2,fma,f16c")
);
#[cfg(target_arch = "x86_64")]
instantiate_vnni!(
    avx_vnni,
    AvxVnniInt,
    AvxVnniInt,
    interleaved8::multiply::<AvxVnniInt, D, N>,
    [1 2 3 4],
    avx2::matvec::<D>,
    interleaved8::fill_panel::<AvxVnniInt, D, ShiftedI8Values>,
    pack::no_panel,
    None,
    PANEL_COLUMNS - 1,
    6,
    target_feature(enable = "avx2,fma,f16c,avxvnni")
);
#[cfg(target_arch = "x86_64")]
instantiate_vnni!(
    avx512_vnni,
    Avx512VnniInt,
    VnniDots512,
    interleaved8_zmm::multiply_double_width::<Avx512VnniInt, VnniDots512, D, N>,
    [1 2 3],
    rows_zmm::matvec::<Avx512VnniInt, VnniDots512, D>,
    interleaved8_zmm::fill_panel::<Avx512VnniInt, VnniDots512, D, ShiftedI8Values>,
    panels512::fill::<D>,
    Some(panels512::multiply),
    usize::MAX,
    12,
    target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
);
#[cfg(target_arch = "x86_64")]
instantiate_panels!(
    panels512,
    Avx512VnniInt,
    group_panels::multiply::<Avx512VnniInt, VnniDots512, 1, 2>,
    interleaved8_zmm::fill_panel::<Avx512VnniInt, VnniDots512, D, ByteValues>,
    target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
);
#[cfg(all(test, target_arch = "x86_64"))]
instantiate_vnni!(
    vnni_model,
    VnniModelInt,
    VnniModelInt,
    interleaved8::multiply::<VnniModelInt, D, N>,
    [1 2],
    avx2::matvec::<D>,
    interleaved8::fill_panel::<VnniModelInt, D, ShiftedI8Values>,
    panels_model::fill::<D>,
    Some(panels_model::multiply),
    PANEL_COLUMNS - 1,
    2,
    target_feature(enable = "avx2,fma,f16c")
);
#[cfg(all(test, target_arch = "x86_64"))]
instantiate_panels!(
    panels_model,
    VnniModelInt,
    group_panels::multiply::<VnniModelInt, VnniModelInt, 2, 4>,
    interleaved8::fill_panel::<VnniModelInt, D, ByteValues>,
    target_feature(enable = "avx2,fma,f16c")
);
