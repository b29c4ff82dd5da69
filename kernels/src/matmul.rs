//! Matmul of weights in any GGUF type with rows of activations.

use crate::dispatch::{GroupKernels, IntTypeKernels, Kernels, kernels};
use crate::generic::byte_tiles::{MAX_BYTE_COLUMNS, MIN_BYTE_COLUMNS, byte_tile_scratch};
use crate::generic::float_panels::{FLOAT_PANEL_COLUMNS, FLOAT_PANEL_SCRATCH, is_for};
use crate::generic::gemm_u8::dot_scratch;
use crate::generic::int_products::IntProduct;
use crate::generic::pack::{RowLayout, WeightRows};
use crate::generic::panel_products::{PanelProduct, panel_scratch};
use crate::generic::products::{Product, panel_size};
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
/// whatever the form of the activations.
pub fn matmul_scratch(k: usize, n: usize) -> usize {
    let (rows, stride) = panel_size(k);
    let floats = match n {
        0..=1 => 0,
        2..FLOAT_PANEL_COLUMNS => rows * stride,
        // The scratch memory must not shrink as the number of columns grows.
        _ => FLOAT_PANEL_SCRATCH.max(rows * stride),
    };
    let float_scratch = floats + group_floats(k);
    float_scratch.max(integer_scratch(k, n))
}

/// Returns the scratch memory in floats for quantized activations.
fn integer_scratch(k: usize, n: usize) -> usize {
    panel_scratch(k, n)
        .max(tile_scratch(k, n))
        .max(byte_tile_scratch(k, n))
        .max(dot_scratch(n))
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
/// - bf16: weights are rounded to bf16 and accumulated in f32 by AMX. Results do not depend on `n`.
///
/// # Panics
/// If the type cannot be dequantized, the type does not support the form of the activations, `k` is not a
/// whole number of blocks, a slice is too short, or the scratch memory is smaller than [`matmul_scratch`].
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
    ByteTiles,
    IntProducts,
    PanelProducts,
    GemmU8,
    Tiles,
}

impl Algorithm {
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
            ActivationForm::I16Row if is_interleaved && n <= kernels.int.group_columns => {
                let column_kernels = kernels.tile_unit.and_then(|unit| unit.columns[ty.id() as usize]);
                if column_kernels.is_some() && n >= MIN_BYTE_COLUMNS {
                    Algorithm::ByteTiles
                } else {
                    Algorithm::Interleaved8
                }
            }
            ActivationForm::I16Row if !is_interleaved && n < PANEL_COLUMNS => Algorithm::IntProducts,
            ActivationForm::I16Row => Algorithm::PanelProducts,
            ActivationForm::U8Chunk => Algorithm::GemmU8,
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
    let is_interleaved = args.layout == WeightLayout::Interleaved;
    assert!(
        !is_interleaved || m.is_multiple_of(GROUP_ROWS),
        "expected whole row groups, found {m} rows"
    );
    // SAFETY: `needed <= w.len()` was asserted above, and each branch checks the activations and the scratch
    // memory. `out` is valid by contract.
    unsafe {
        match args.x {
            Activations::F32 { x, stride } if is_interleaved => {
                multiply_groups_of_floats(kernels, args, x, stride, out, out_stride, scratch);
            }
            Activations::F32 { x, stride } => multiply_floats(kernels, args, x, stride, out, out_stride, scratch),
            Activations::Quantized { form, rows, stride }
                if form == ActivationForm::Bf16Row && rounds_floats(ty) && !is_interleaved =>
            {
                check_activations((n - 1) * stride + activation_bytes(form, k), rows.len(), n);
                multiply_floats_in_tiles(kernels, args, rows, stride, out, out_stride, scratch);
            }
            Activations::Quantized { form, rows, stride } => {
                let type_kernels = kernels.int.find(ty);
                let type_kernels = type_kernels.unwrap_or_else(|| panic!("{ty} has no integer kernels"));
                check_activations((n - 1) * stride + activation_bytes(form, k), rows.len(), n);
                match Algorithm::select(kernels, args, form) {
                    Algorithm::Interleaved8 | Algorithm::ByteTiles => {
                        multiply_groups(kernels, type_kernels, args, rows, stride, out, out_stride, scratch);
                    }
                    Algorithm::IntProducts => {
                        multiply_rows(type_kernels, args, rows, stride, out, out_stride, scratch);
                    }
                    _ => multiply_panels(
                        kernels,
                        type_kernels,
                        args,
                        form,
                        rows,
                        stride,
                        out,
                        out_stride,
                        scratch,
                    ),
                }
            }
        }
    }
}

/// Runs matmuls on bf16 tiles in the L1 cache for `rounds` rounds and returns the number of multiply-adds, or
/// `None` without AMX. Benchmarks use this as the peak rate.
pub fn multiply_tiles_in_cache(rounds: usize) -> Option<usize> {
    // SAFETY: `kernels()` selects kernels that this CPU supports, and no other tile unit is active in this
    // thread.
    kernels()
        .tile_unit
        .map(|unit| unsafe { (unit.multiply_in_cache)(rounds) })
}

/// Multiplies interleaved rows by f32 activations, restoring one group at a time to the file layout.
///
/// # Safety
/// - The contract of [`matmul_with`] holds.
/// - `args.w` has been checked to hold `m` rows.
unsafe fn multiply_groups_of_floats(
    kernels: &'static Kernels,
    args: &MatMul,
    x: &[f32],
    x_stride: usize,
    out: *mut f32,
    out_stride: usize,
    scratch: &mut [f32],
) {
    let group_bytes = interleaved_bytes(args.ty, args.k);
    let (rows, scratch) = scratch.split_at_mut(group_floats(args.k));
    let stride = args.ty.row_bytes(args.k).unwrap_or_default();
    let rows = &mut bytemuck::cast_slice_mut(rows)[..GROUP_ROWS * stride];
    for (i, group) in args.w.chunks_exact(group_bytes).take(args.m / GROUP_ROWS).enumerate() {
        deinterleave(args.ty, args.k, group, rows);
        let args = MatMul {
            w: rows,
            layout: WeightLayout::Rows { stride },
            m: GROUP_ROWS,
            ..*args
        };
        // SAFETY: the group's 8 rows of the output are part of the `m` rows (contract of `matmul_with`).
        unsafe {
            let out = out.add(i * GROUP_ROWS);
            multiply_floats(kernels, &args, x, x_stride, out, out_stride, scratch);
        }
    }
}

/// Multiplies rows in file layout by f32 activations.
///
/// # Safety
/// - The contract of [`matmul_with`] holds.
/// - `args.w` has been checked to hold `m` rows.
unsafe fn multiply_floats(
    kernels: &'static Kernels,
    args: &MatMul,
    x: &[f32],
    x_stride: usize,
    out: *mut f32,
    out_stride: usize,
    scratch: &mut [f32],
) {
    let &MatMul { ty, w, m, k, n, .. } = args;
    let algorithm = Algorithm::select(kernels, args, ActivationForm::F32);
    let kernels = kernels.for_type(ty);
    check_activations((n - 1) * x_stride + k, x.len(), n);
    let needed = matmul_scratch(k, n) - group_floats(k);
    check_scratch(needed, scratch);
    let product = Product {
        w: w.as_ptr(),
        row_stride: args.row_stride(),
        m,
        k,
        x: x.as_ptr(),
        x_stride,
        n,
        out,
        out_stride,
        panel: scratch.as_mut_ptr(),
    };
    let kernel = match algorithm {
        Algorithm::FloatPanels => kernels.panels,
        _ if n == 1 => kernels.matvec,
        _ => kernels.matmul,
    };
    // SAFETY: the sizes of weights, activations, and scratch memory were checked above; `out` and the
    // instruction set are valid by contract.
    unsafe { kernel(&product) }
}

/// Multiplies rows in file layout by a few rows of [`ActivationForm::I16Row`].
///
/// # Safety
/// - The contract of [`matmul_with`] holds.
/// - `args.w` and `x` have been checked to hold `m` and `n` rows.
unsafe fn multiply_rows(
    kernels: &IntTypeKernels,
    args: &MatMul,
    x: &[u8],
    x_stride: usize,
    out: *mut f32,
    out_stride: usize,
    scratch: &mut [f32],
) {
    let product = IntProduct {
        w: args.w.as_ptr(),
        row_stride: args.row_stride(),
        m: args.m,
        k: args.k,
        x: x.as_ptr(),
        x_stride,
        n: args.n,
        out,
        out_stride,
        scratch: scratch.as_mut_ptr(),
        reuse_prepared_x: args.reuse_prepared_x,
    };
    let kernel = if args.n == 1 { kernels.matvec } else { kernels.matmul };
    // SAFETY: `product` satisfies the invariants of `IntProduct` (sizes checked in `matmul_with`).
    unsafe { kernel(&product) }
}

/// Multiplies row groups by rows of [`ActivationForm::I16Row`], a few columns at a time.
///
/// # Safety
/// - The contract of [`matmul_with`] holds.
/// - `args.w` and `x` have been checked to hold `m` and `n` rows.
unsafe fn multiply_groups(
    kernels: &'static Kernels,
    type_kernels: &IntTypeKernels,
    args: &MatMul,
    x: &[u8],
    x_stride: usize,
    out: *mut f32,
    out_stride: usize,
    scratch: &mut [f32],
) {
    let tile_kernels = kernels.tile_unit.and_then(|unit| unit.columns[args.ty.id() as usize]);
    let columns = group_kernels(type_kernels, args.ty).columns;
    let needed = if tile_kernels.is_some() {
        byte_tile_scratch(args.k, args.n)
    } else {
        0
    };
    check_scratch(needed, scratch);
    let mut first = 0;
    while first < args.n {
        let left = args.n - first;
        let (n, kernel) = match tile_kernels {
            Some(kernels) if left >= MIN_BYTE_COLUMNS => {
                let n = left.min(MAX_BYTE_COLUMNS);
                (n, kernels[(n - 1) / BYTE_COLUMNS])
            }
            _ => {
                // Divide the columns evenly instead of leaving a few for the last call.
                let n = left.div_ceil(left.div_ceil(columns.len()));
                (n, columns[n - 1])
            }
        };
        // SAFETY: `first + n <= args.n`, so `product` satisfies the invariants of `IntProduct` (sizes checked
        // in `matmul_with`).
        unsafe {
            let product = IntProduct {
                w: args.w.as_ptr(),
                row_stride: args.row_stride(),
                m: args.m,
                k: args.k,
                x: x.as_ptr().add(first * x_stride),
                x_stride,
                n,
                out: out.add(first * out_stride),
                out_stride,
                scratch: scratch.as_mut_ptr().wrapping_add(byte_tile_scratch(args.k, first)),
                reuse_prepared_x: args.reuse_prepared_x,
            };
            kernel(&product);
        }
        first += n;
    }
}

/// Multiplies rows of floats by rows of bf16 activations.
///
/// # Safety
/// - The contract of [`matmul_with`] holds.
/// - `args.w` and `x` have been checked to hold `m` and `n` rows.
unsafe fn multiply_floats_in_tiles(
    kernels: &'static Kernels,
    args: &MatMul,
    x: &[u8],
    x_stride: usize,
    out: *mut f32,
    out_stride: usize,
    scratch: &mut [f32],
) {
    let needed = tile_scratch(args.k, args.n);
    check_scratch(needed, scratch);
    let product = TileProduct {
        w: FloatRows {
            w: args.w.as_ptr(),
            stride: args.row_stride(),
            float_bytes: args.ty.block_bytes(),
            m: args.m,
            k: args.k,
            dequantize: kernels.for_type(args.ty).dequantize,
        },
        x: x.as_ptr(),
        x_stride,
        n: args.n,
        out,
        out_stride,
        scratch: scratch.as_mut_ptr(),
    };
    // SAFETY: weights and activations were checked in `matmul_with`, the scratch memory above.
    unsafe { (kernels.amx_kernels().multiply_floats)(&product) }
}

/// Returns the kernels for row groups of a type.
fn group_kernels(kernels: &IntTypeKernels, ty: GgmlType) -> &GroupKernels {
    let groups = kernels.groups.as_ref();
    groups.unwrap_or_else(|| panic!("{ty} has no kernels for interleaved rows"))
}

/// Multiplies weights by quantized activations, unpacking the weights to panels or tiles.
///
/// # Safety
/// - The contract of [`matmul_with`] holds.
/// - `args.w` and `x` have been checked to hold `m` and `n` rows.
unsafe fn multiply_panels(
    kernels: &'static Kernels,
    type_kernels: &IntTypeKernels,
    args: &MatMul,
    form: ActivationForm,
    x: &[u8],
    x_stride: usize,
    out: *mut f32,
    out_stride: usize,
    scratch: &mut [f32],
) {
    let ty = args.ty;
    let kernel = match form {
        ActivationForm::I16Row => kernels.int.panels_i16,
        ActivationForm::U8Chunk => kernels.int.dots,
        ActivationForm::Bf16Row => kernels.amx_kernels().multiply,
        ActivationForm::F32 => panic!("{ty}: expected quantized activations, found f32"),
    };
    let needed = integer_scratch(args.k, args.n);
    check_scratch(needed, scratch);
    let product = PanelProduct {
        w: WeightRows {
            ty,
            w: args.w.as_ptr(),
            row_stride: args.row_stride(),
            m: args.m,
            k: args.k,
            chunk_bytes: match args.layout {
                WeightLayout::Rows { .. } => CHUNK / ty.block_size() * ty.block_bytes(),
                WeightLayout::Interleaved => interleaved_bytes(ty, CHUNK) / GROUP_ROWS,
            },
            integers: type_kernels.integers,
            layout: match args.layout {
                WeightLayout::Rows { .. } => RowLayout::Rows(type_kernels.unpack),
                WeightLayout::Interleaved => RowLayout::Groups(group_kernels(type_kernels, ty).fill),
            },
        },
        x: x.as_ptr(),
        x_stride,
        n: args.n,
        out,
        out_stride,
        scratch: scratch.as_mut_ptr(),
    };
    // SAFETY: weights and activations were checked in `matmul_with`, the scratch memory above.
    unsafe { kernel(&product) }
}

fn check_scratch(needed: usize, scratch: &[f32]) {
    let len = scratch.len();
    assert!(
        needed <= len,
        "matmul needs {needed} floats of scratch memory, found {len}"
    );
}

fn check_activations(needed: usize, len: usize, n: usize) {
    assert!(
        needed <= len,
        "expected activations of length {needed} for {n} rows, found {len}"
    );
}
