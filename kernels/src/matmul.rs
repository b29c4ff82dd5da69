//! Matmul of weights in any GGUF type with rows of activations.

use crate::dispatch::{GroupKernels, IntTypeKernels, Kernels, kernels};
use crate::generic::byte_tiles::{MAX_BYTE_COLUMNS, MIN_BYTE_COLUMNS, byte_tile_scratch};
use crate::generic::float_panels::{FLOAT_PANEL_COLUMNS, FLOAT_PANEL_SCRATCH, is_for};
use crate::generic::gemm_u8::dot_scratch;
use crate::generic::group_panels::{GROUP_PANEL_COLUMNS, GroupFormat, MAX_GROUP_PANEL_COLUMNS};
use crate::generic::int_products::IntProduct;
use crate::generic::pack::{RowLayout, WeightRows};
use crate::generic::pair_panels::{PAIR_PANEL_SCRATCH, PairProduct};
use crate::generic::panel_products::{PanelProduct, panel_scratch};
use crate::generic::products::{FloatFormat, Product, panel_size};
use crate::generic::tile_packing::FloatRows;
use crate::generic::tiles::{TileProduct, rounds_floats, tile_scratch};
use crate::interleaved::{GROUP_ROWS, deinterleave, interleaved_bytes};
use crate::layout::runs::CHUNK;
use crate::limits::PANEL_COLUMNS;
use crate::simd::byte_tiles::BYTE_COLUMNS;
use crate::{ActivationForm, Activations, GgmlType, activation_bytes};

/// Operands of [`matmul`]: `out[j * out_stride + i] = sum_c w[i][c] * x[j][c]` for `i` in `0..m`, `j` in
/// `0..n`.
#[derive(Clone, Copy, Debug)]
pub struct MatMul<'a> {
    /// Type of the weights.
    pub ty: GgmlType,
    /// `m` rows of `k` weights each; may be unaligned.
    pub w: &'a [u8],
    /// Layout of the rows in `w`.
    pub layout: WeightLayout,
    /// Number of rows of weights.
    pub m: usize,
    /// Elements per row, a whole number of blocks.
    pub k: usize,
    /// Activations: `n` rows of `k` elements.
    pub x: Activations<'a>,
    /// Number of rows of activations.
    pub n: usize,
    /// Allows a different, faster order of f32 additions for large `n`.
    pub allow_reassociation: bool,
    /// Reuses the prepared form of the activations in the scratch memory. The previous matmul with this
    /// scratch memory must have had the same activations and the same type of weights, and the memory must be
    /// unchanged.
    pub reuse_prepared_x: bool,
}

impl MatMul<'_> {
    /// Returns the distance between rows in bytes. For interleaved rows, this is an eighth of a group's size.
    fn row_stride(&self) -> usize {
        match self.layout {
            WeightLayout::Rows { stride } => stride,
            WeightLayout::Interleaved => interleaved_bytes(self.ty, self.k) / GROUP_ROWS,
        }
    }
}

/// Layout of rows of weights in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WeightLayout {
    /// Rows in file order.
    Rows {
        /// Distance between rows in bytes.
        stride: usize,
    },
    /// Groups of [`GROUP_ROWS`] rows, as written by [`interleave`](crate::interleaved::interleave). The
    /// number of rows is a multiple of the group size.
    Interleaved,
}

/// Returns the scratch memory in floats that [`matmul`] needs for rows of `k` elements and `n` columns,
/// regardless of the form of the activations.
pub fn matmul_scratch(k: usize, n: usize) -> usize {
    let sizes = Algorithm::ALL.map(|algorithm| algorithm.scratch(k, n));
    sizes.into_iter().fold(0, usize::max)
}

/// Returns the floats that hold the deinterleaved rows of a group. No interleaved type takes more than 34
/// bytes per 32 weights.
const fn group_floats(k: usize) -> usize {
    GROUP_ROWS * k.div_ceil(32) * 34 / size_of::<f32>() + 1
}

/// Multiplies weights by activations. To parallelize, split the rows of `w` between threads. Each thread
/// needs its own part of `out` and its own scratch memory.
///
/// Results never depend on how rows are split. Other properties depend on the form of the activations:
///
/// - f32: weights are decoded exactly and accumulated in f32. Results may differ by rounding between `n = 1`
///   and larger `n`, and with [`MatMul::allow_reassociation`] between small and large `n`.
/// - Integers: dot products of 16 or 32 elements are exact, then accumulated in f32.
///   [`activation_form`](crate::activation_form) returns which types support this. Results are the same for
///   all `n` up to 8 and for all larger `n`. With interleaved weights and [`ActivationForm::I16Row`] they do
///   not depend on `n`.
/// - Pairs of integers: weights are rounded to 16-bit integers. Dot products of 256 elements are exact, then
///   accumulated in f32. Results do not depend on `n`.
/// - bf16: weights are rounded to bf16 and accumulated in f32. Results do not depend on `n`.
///
/// # Panics
/// Panics if the type cannot be dequantized or does not support the form of the activations. Also if `k` is not a whole
/// number of blocks, a slice is too short, or the scratch memory is smaller than [`matmul_scratch`].
///
/// # Safety
/// - For each `j < n`, the `m` floats at `out + j * out_stride` are valid for writes. They may be
///   uninitialized.
/// - During the call, these floats are neither accessed elsewhere nor part of `args`.
pub unsafe fn matmul(args: &MatMul, out: *mut f32, out_stride: usize, scratch: &mut [f32]) {
    // SAFETY: the caller upholds the contract of `matmul_with`; `kernels()` selects kernels that this CPU
    // supports.
    unsafe { matmul_with(kernels(), args, out, out_stride, scratch) }
}

/// Algorithm of a matmul, named after the module of `generic` that implements it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Algorithm {
    Products,
    FloatPanels,
    Interleaved8,
    GroupPanels,
    ByteTiles,
    IntProducts,
    PanelProducts,
    GemmU8,
    PairPanels,
    Tiles,
}

impl Algorithm {
    const ALL: [Algorithm; 10] = [
        Algorithm::Products,
        Algorithm::FloatPanels,
        Algorithm::Interleaved8,
        Algorithm::GroupPanels,
        Algorithm::ByteTiles,
        Algorithm::IntProducts,
        Algorithm::PanelProducts,
        Algorithm::GemmU8,
        Algorithm::PairPanels,
        Algorithm::Tiles,
    ];

    /// Returns the scratch memory in floats for rows of `k` elements and `n` columns. The size does not shrink
    /// as the number of columns grows.
    fn scratch(self, k: usize, n: usize) -> usize {
        match self {
            Algorithm::Products if n < 2 => group_floats(k),
            Algorithm::Products => {
                let (rows, stride) = panel_size(k);
                group_floats(k) + rows * stride
            }
            Algorithm::FloatPanels if n < FLOAT_PANEL_COLUMNS => 0,
            Algorithm::FloatPanels => group_floats(k) + FLOAT_PANEL_SCRATCH,
            Algorithm::Interleaved8 | Algorithm::GroupPanels | Algorithm::IntProducts => 0,
            Algorithm::ByteTiles => byte_tile_scratch(k, n),
            Algorithm::PanelProducts => panel_scratch(k, n),
            Algorithm::GemmU8 => dot_scratch(n),
            Algorithm::PairPanels => PAIR_PANEL_SCRATCH,
            Algorithm::Tiles => tile_scratch(k, n),
        }
    }

    /// Selects the algorithm for activations in `form`. The table in `README.md` is generated from this
    /// function.
    pub(crate) fn select(kernels: &'static Kernels, args: &MatMul, form: ActivationForm) -> Algorithm {
        let &MatMul { ty, n, .. } = args;
        let is_interleaved = args.layout == WeightLayout::Interleaved;
        match form {
            ActivationForm::F32 if n >= FLOAT_PANEL_COLUMNS && args.allow_reassociation && is_for(ty) => {
                Algorithm::FloatPanels
            }
            ActivationForm::F32 => Algorithm::Products,
            ActivationForm::I16Row if is_interleaved && n <= kernels.int.max_group_columns(ty) => {
                if n >= MIN_BYTE_COLUMNS && kernels.column_tiles(ty).is_some() {
                    Algorithm::ByteTiles
                } else if n >= GROUP_PANEL_COLUMNS && kernels.int.group_panels.is_some() {
                    Algorithm::GroupPanels
                } else {
                    Algorithm::Interleaved8
                }
            }
            ActivationForm::I16Row if !is_interleaved && n < PANEL_COLUMNS => Algorithm::IntProducts,
            ActivationForm::I16Row => Algorithm::PanelProducts,
            ActivationForm::U8Chunk => Algorithm::GemmU8,
            ActivationForm::I16Pairs => Algorithm::PairPanels,
            ActivationForm::Bf16Row => Algorithm::Tiles,
        }
    }
}

/// Multiplies like [`matmul`] with the given kernels.
///
/// # Safety
/// - The CPU supports `kernels`.
/// - For each `j < n`, the `m` floats at `out + j * out_stride` are valid for writes, and nothing else
///   accesses them during the call.
pub(crate) unsafe fn matmul_with(
    kernels: &'static Kernels,
    args: &MatMul,
    out: *mut f32,
    out_stride: usize,
    scratch: &mut [f32],
) {
    let &MatMul { ty, m, k, n, .. } = args;
    let row_bytes = ty
        .row_bytes(k)
        .unwrap_or_else(|| panic!("{ty}: expected whole blocks, found rows of {k} elements"));
    if m == 0 || n == 0 {
        return;
    }
    let needed = match args.layout {
        WeightLayout::Rows { stride } => (m - 1) * stride + row_bytes,
        WeightLayout::Interleaved => m.div_ceil(GROUP_ROWS) * interleaved_bytes(ty, k),
    };
    assert!(
        needed <= args.w.len(),
        "matmul of {m} rows: weights have only {} bytes",
        args.w.len()
    );
    assert!(
        args.layout != WeightLayout::Interleaved || m.is_multiple_of(GROUP_ROWS),
        "expected whole row groups, found {m} rows"
    );
    let (form, x, x_stride, x_len, row_len) = match args.x {
        Activations::F32 { x, stride } => (ActivationForm::F32, x.as_ptr().cast(), stride, x.len(), k),
        Activations::Quantized {
            form: ActivationForm::F32,
            ..
        } => panic!("{ty}: expected quantized activations, found f32"),
        Activations::Quantized { form, rows, stride } => {
            (form, rows.as_ptr(), stride, rows.len(), activation_bytes(form, k))
        }
    };
    let needed = (n - 1) * x_stride + row_len;
    assert!(
        needed <= x_len,
        "expected activations of length {needed} for {n} rows, found {x_len}"
    );
    let algorithm = Algorithm::select(kernels, args, form);
    let (needed, found) = (algorithm.scratch(k, n), scratch.len());
    assert!(
        needed <= found,
        "matmul needs {needed} floats of scratch memory, found {found}"
    );
    let call = GemmCall {
        kernels,
        algorithm,
        args,
        x,
        x_stride,
        out,
        out_stride,
        scratch,
    };
    // SAFETY: the sizes of weights, activations, and scratch memory were checked above; `out` and the
    // instruction set are valid by contract.
    unsafe { call.run() }
}

/// Runs bf16 matmuls in the L1 cache for `rounds` rounds. Returns the number of multiply-adds, or `None` if this CPU
/// has no [bf16 kernels](ActivationForm::Bf16Row).
pub(crate) fn multiply_tiles_in_cache(rounds: usize) -> Option<usize> {
    // SAFETY: `kernels()` selects kernels that this CPU supports, and no other tile unit is active in this
    // thread.
    kernels()
        .float_tiles
        .map(|unit| unsafe { (unit.multiply_in_cache)(rounds) })
}

/// Returns the kernels for row groups of a type.
fn group_kernels(kernels: &IntTypeKernels, ty: GgmlType) -> &GroupKernels {
    let groups = kernels.groups.as_ref();
    groups.unwrap_or_else(|| panic!("{ty} has no kernels for interleaved rows"))
}

/// A matmul with checked operands.
///
/// Invariants, checked in [`matmul_with`] or part of its contract:
/// - The CPU supports `kernels`.
/// - `args.w` holds `args.m` rows.
/// - `x` is valid for reads of `args.n` rows, `x_stride` apart: floats for f32 activations, otherwise bytes.
/// - `out` is valid for writes of `args.m` floats at each `j * out_stride`, `j < args.n`, and nothing else
///   accesses them.
/// - `scratch` has [`Algorithm::scratch`] floats.
struct GemmCall<'a> {
    kernels: &'static Kernels,
    algorithm: Algorithm,
    args: &'a MatMul<'a>,
    x: *const u8,
    x_stride: usize,
    out: *mut f32,
    out_stride: usize,
    scratch: &'a mut [f32],
}

impl GemmCall<'_> {
    /// Computes the matmul.
    ///
    /// # Safety
    /// The invariants of [`GemmCall`] hold.
    unsafe fn run(self) {
        let is_interleaved = self.args.layout == WeightLayout::Interleaved;
        // SAFETY: the invariants hold by contract, and `algorithm` was selected for `args`.
        unsafe {
            match self.algorithm {
                Algorithm::Products | Algorithm::FloatPanels if is_interleaved => self.multiply_groups_of_floats(),
                Algorithm::Products | Algorithm::FloatPanels => self.multiply_floats(),
                Algorithm::Interleaved8 | Algorithm::GroupPanels | Algorithm::ByteTiles => self.multiply_groups(),
                Algorithm::IntProducts => self.multiply_rows(),
                Algorithm::PairPanels => self.multiply_pairs(),
                Algorithm::Tiles if rounds_floats(self.args.ty) && !is_interleaved => self.multiply_floats_in_tiles(),
                Algorithm::PanelProducts | Algorithm::GemmU8 | Algorithm::Tiles => self.multiply_panels(),
            }
        }
    }

    /// Returns the integer kernels of the type of the weights.
    fn int_kernels(&self) -> &'static IntTypeKernels {
        let ty = self.args.ty;
        let kernels = self.kernels.int.find(ty);
        kernels.unwrap_or_else(|| panic!("{ty} has no integer kernels"))
    }

    /// Multiplies interleaved rows by f32 activations, restoring one group at a time to the file layout.
    ///
    /// # Safety
    /// The invariants of [`GemmCall`] hold.
    unsafe fn multiply_groups_of_floats(self) {
        let &MatMul { ty, w, m, k, .. } = self.args;
        let (rows, scratch) = self.scratch.split_at_mut(group_floats(k));
        let stride = ty.row_bytes(k).unwrap_or_default();
        let rows = &mut bytemuck::cast_slice_mut(rows)[..GROUP_ROWS * stride];
        let groups = w.chunks_exact(interleaved_bytes(ty, k)).take(m / GROUP_ROWS);
        for (i, group) in groups.enumerate() {
            deinterleave(ty, k, group, rows);
            let args = MatMul {
                w: rows,
                layout: WeightLayout::Rows { stride },
                m: GROUP_ROWS,
                ..*self.args
            };
            // SAFETY: the group's 8 rows of the output are part of the `m` rows, and `rows` holds the group's weights.
            // The rest of the scratch memory is that of the algorithm.
            unsafe {
                let part = GemmCall {
                    kernels: self.kernels,
                    algorithm: self.algorithm,
                    args: &args,
                    x: self.x,
                    x_stride: self.x_stride,
                    out: self.out.add(i * GROUP_ROWS),
                    out_stride: self.out_stride,
                    scratch: &mut *scratch,
                };
                part.multiply_floats();
            }
        }
    }

    /// Multiplies rows in file layout by f32 activations.
    ///
    /// # Safety
    /// The invariants of [`GemmCall`] hold, except that the scratch memory of a group of rows may be missing.
    unsafe fn multiply_floats(self) {
        let &MatMul { ty, w, m, k, n, .. } = self.args;
        let kernels = self.kernels.for_type(ty);
        let product = Product {
            w: w.as_ptr(),
            row_stride: self.args.row_stride(),
            m,
            k,
            x: self.x.cast(),
            x_stride: self.x_stride,
            n,
            out: self.out,
            out_stride: self.out_stride,
            panel: self.scratch.as_mut_ptr(),
        };
        let kernel = match self.algorithm {
            Algorithm::FloatPanels => kernels.panels,
            _ if n == 1 => kernels.matvec,
            _ => kernels.matmul,
        };
        // SAFETY: `product` satisfies the invariants of `Product`, which are among those of `GemmCall`.
        unsafe { kernel(&product) }
    }

    /// Describes the matmul for the kernels of [`ActivationForm::I16Row`].
    fn int_product(&mut self) -> IntProduct {
        let args = self.args;
        IntProduct {
            w: args.w.as_ptr(),
            row_stride: args.row_stride(),
            m: args.m,
            k: args.k,
            x: self.x,
            x_stride: self.x_stride,
            n: args.n,
            out: self.out,
            out_stride: self.out_stride,
            scratch: self.scratch.as_mut_ptr(),
            reuse_prepared_x: args.reuse_prepared_x,
        }
    }

    /// Multiplies rows in file layout by a few rows of [`ActivationForm::I16Row`].
    ///
    /// # Safety
    /// The invariants of [`GemmCall`] hold.
    unsafe fn multiply_rows(mut self) {
        let kernels = self.int_kernels();
        let kernel = if self.args.n == 1 {
            kernels.matvec
        } else {
            kernels.matmul
        };
        // SAFETY: the product satisfies the invariants of `IntProduct`, which are among those of `GemmCall`.
        unsafe { kernel(&self.int_product()) }
    }

    /// Multiplies row groups by rows of [`ActivationForm::I16Row`], a few columns at a time.
    ///
    /// # Safety
    /// The invariants of [`GemmCall`] hold.
    unsafe fn multiply_groups(mut self) {
        let &MatMul { ty, k, n, .. } = self.args;
        let tiles = self.kernels.column_tiles(ty);
        let panels = self.kernels.int.group_panels;
        let of_type = self.int_kernels();
        let groups = group_kernels(of_type, ty);
        let format = GroupFormat {
            integers: of_type.integers,
            chunk_bytes: groups.chunk_bytes,
            fill: groups.fill,
        };
        let whole = self.int_product();
        let mut first = 0;
        while first < n {
            let left = n - first;
            // Divides the columns evenly instead of leaving a few for the last call.
            let evenly = |most: usize| left.div_ceil(left.div_ceil(most));
            let part = |n: usize| IntProduct {
                x: whole.x.wrapping_add(first * whole.x_stride),
                n,
                out: whole.out.wrapping_add(first * whole.out_stride),
                scratch: whole.scratch.wrapping_add(Algorithm::ByteTiles.scratch(k, first)),
                ..whole
            };
            // SAFETY: `first` plus the columns of each product is at most `args.n`. The products thus satisfy the
            // invariants of `IntProduct`, which are among those of `GemmCall`. The tiles of these columns follow those
            // of the columns before them. `format` is the format of the weights.
            first += unsafe {
                match (tiles, panels) {
                    (Some(tiles), _) if left >= MIN_BYTE_COLUMNS => {
                        let n = left.min(MAX_BYTE_COLUMNS);
                        tiles[(n - 1) / BYTE_COLUMNS](&part(n));
                        n
                    }
                    (_, Some(multiply)) if left >= GROUP_PANEL_COLUMNS => {
                        let n = evenly(MAX_GROUP_PANEL_COLUMNS);
                        multiply(&part(n), &format);
                        n
                    }
                    _ => {
                        let n = evenly(groups.columns.len());
                        groups.columns[n - 1](&part(n));
                        n
                    }
                }
            };
        }
    }

    /// Multiplies rows of 16-bit floats by rows of [`ActivationForm::I16Pairs`].
    ///
    /// # Safety
    /// The invariants of [`GemmCall`] hold.
    unsafe fn multiply_pairs(self) {
        let args = self.args;
        let format = FloatFormat {
            ty: args.ty,
            dequantize: self.kernels.for_type(args.ty).dequantize,
        };
        let product = PairProduct {
            w: args.w.as_ptr(),
            row_stride: args.row_stride(),
            m: args.m,
            k: args.k,
            x: self.x,
            x_stride: self.x_stride,
            n: args.n,
            out: self.out,
            out_stride: self.out_stride,
            scratch: self.scratch.as_mut_ptr(),
        };
        // SAFETY: the operands are those of `GemmCall`, and the scratch memory has `PAIR_PANEL_SCRATCH` floats.
        unsafe { (self.kernels.pair_kernels().multiply)(&product, &format) }
    }

    /// Multiplies rows of floats by rows of bf16 activations.
    ///
    /// # Safety
    /// The invariants of [`GemmCall`] hold.
    unsafe fn multiply_floats_in_tiles(self) {
        let args = self.args;
        let product = TileProduct {
            w: FloatRows {
                w: args.w.as_ptr(),
                stride: args.row_stride(),
                float_bytes: args.ty.block_bytes(),
                is_bf16: args.ty == GgmlType::BF16,
                m: args.m,
                k: args.k,
                dequantize: self.kernels.for_type(args.ty).dequantize,
            },
            x: self.x,
            x_stride: self.x_stride,
            n: args.n,
            out: self.out,
            out_stride: self.out_stride,
            scratch: self.scratch.as_mut_ptr(),
        };
        // SAFETY: `product` satisfies the invariants of `TileProduct`, which are among those of `GemmCall`.
        unsafe { (self.kernels.bf16_kernels().multiply)(&product) }
    }

    /// Multiplies weights by quantized activations, unpacking the weights to panels or tiles.
    ///
    /// # Safety
    /// The invariants of [`GemmCall`] hold.
    unsafe fn multiply_panels(self) {
        let &MatMul { ty, w, m, k, n, .. } = self.args;
        let type_kernels = self.int_kernels();
        let kernel = match self.algorithm {
            Algorithm::PanelProducts => self.kernels.int.panels_i16,
            Algorithm::GemmU8 => self.kernels.int.dots,
            Algorithm::Tiles => self.kernels.amx_kernels().multiply,
            other => unreachable!("{other:?} does not unpack weights"),
        };
        let (chunk_bytes, layout) = match self.args.layout {
            WeightLayout::Rows { .. } => (
                CHUNK / ty.block_size() * ty.block_bytes(),
                RowLayout::Rows(type_kernels.unpack),
            ),
            WeightLayout::Interleaved => (
                interleaved_bytes(ty, CHUNK) / GROUP_ROWS,
                RowLayout::Groups(group_kernels(type_kernels, ty).fill),
            ),
        };
        let product = PanelProduct {
            w: WeightRows {
                ty,
                w: w.as_ptr(),
                row_stride: self.args.row_stride(),
                m,
                k,
                chunk_bytes,
                integers: type_kernels.integers,
                layout,
            },
            x: self.x,
            x_stride: self.x_stride,
            n,
            out: self.out,
            out_stride: self.out_stride,
            scratch: self.scratch.as_mut_ptr(),
        };
        // SAFETY: `product` satisfies the invariants of `PanelProduct`, which are among those of `GemmCall`.
        unsafe { kernel(&product) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_size_never_shrinks_with_more_columns() {
        for k in [32, 256, 2048, 14336] {
            let sizes: Vec<usize> = (0..600).map(|n| matmul_scratch(k, n)).collect();
            assert!(sizes.is_sorted(), "rows of {k} elements: {sizes:?}");
        }
    }
}
