//! Kernels over integers: those of AVX2 also serve CPUs with AVX-512.

use super::N_TYPES;
use crate::GgmlType;
use crate::generic::int_products::{self, AllColumns, ColumnsOfChunk, IntProduct};
use crate::generic::integers::{self, Unpack};
use crate::quants::{self, Block, for_each_block};
use crate::simd::portable_int::PortableInt;
#[cfg(target_arch = "x86_64")]
use crate::simd::x86_64::avx2_int::Avx2Int;

/// All integer kernels of an instruction set.
pub(crate) struct IntKernels {
    types: [Option<IntTypeKernels>; N_TYPES],
    /// Writes a row of activations as integers of 16 bits.
    pub quantize_i16: unsafe fn(*const f32, usize, *mut u8),
}

/// Integer kernels that depend on the type of the weights.
pub(crate) struct IntTypeKernels {
    /// Product with one column.
    pub matvec: unsafe fn(&IntProduct),
    /// Product with several columns; the same bits for each.
    pub matmul: unsafe fn(&IntProduct),
}

impl IntKernels {
    /// The kernels of a type, if there are any.
    #[inline]
    pub(crate) fn find(&'static self, ty: GgmlType) -> Option<&'static IntTypeKernels> {
        self.types[ty.id() as usize].as_ref()
    }
}

/// The kernels of all types that can be unpacked, by type id.
macro_rules! type_table {
    (() $( $block:ident $quantize:tt [$($unpack:ident)?]; )*) => { {
        let mut table = [const { None }; N_TYPES];
        $( type_table!(@ table $block $($unpack)?); )*
        table
    } };
    (@ $table:ident $block:ident) => {};
    (@ $table:ident $block:ident unpack) => {
        $table[<quants::$block as Block>::TYPE.id() as usize] = Some(type_kernels::<quants::$block>());
    };
}

/// Instantiates the generic kernels for a register type, in functions with its instructions enabled.
macro_rules! instantiate {
    ($module:ident, $V:ty, [$($n:literal)*], $attribute:meta) => {
        pub(super) mod $module {
            use super::*;

            #[$attribute]
            unsafe fn quantize_i16(x: *const f32, k: usize, out: *mut u8) {
                // SAFETY: the caller's promise.
                unsafe { integers::quantize_i16::<$V>(x, k, out) }
            }

            #[$attribute]
            unsafe fn add_columns<const N: usize>(columns: &ColumnsOfChunk) {
                // SAFETY: the caller's promise.
                unsafe { int_products::add_columns::<$V, N>(columns) }
            }
            const COLUMNS: &AllColumns = &[$( add_columns::<$n> ),*];

            #[$attribute]
            unsafe fn matvec<D: Unpack<$V>>(product: &IntProduct) {
                // SAFETY: the caller's promise.
                unsafe { int_products::matvec::<$V, D>(product) }
            }

            #[$attribute]
            unsafe fn matmul<D: Unpack<$V>>(product: &IntProduct) {
                // SAFETY: the caller's promise.
                unsafe { int_products::matmul::<$V, D>(product, COLUMNS) }
            }

            const fn type_kernels<D: Unpack<$V>>() -> IntTypeKernels {
                IntTypeKernels {
                    matvec: matvec::<D>,
                    matmul: matmul::<D>,
                }
            }

            pub(in crate::dispatch) static KERNELS: IntKernels = IntKernels {
                types: for_each_block!(type_table!()),
                quantize_i16,
            };
        }
    };
}

instantiate!(scalar, PortableInt, [1 2], inline(never));
#[cfg(target_arch = "x86_64")]
instantiate!(avx2, Avx2Int, [1 2 3 4], target_feature(enable = "avx2,fma,f16c"));
