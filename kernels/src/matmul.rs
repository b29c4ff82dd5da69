//! The matrix product that models spend their time in.

use crate::activations::PANEL_COLUMNS;
use crate::dispatch::{GroupKernels, IntTypeKernels, Kernels, kernels};
use crate::generic::byte_tiles::{LEAST_BYTE_COLUMNS, MOST_BYTE_COLUMNS, byte_tile_scratch};
use crate::generic::gemm_u8::dot_scratch;
use crate::generic::float_panels::{FLOAT_PANEL_COLUMNS, FLOAT_PANEL_SCRATCH};
use crate::generic::int_products::IntProduct;
use crate::generic::integers::CHUNK;
use crate::generic::panel_products::{PanelProduct, panel_scratch};
use crate::generic::pack::{RowLayout, WeightRows};
use crate::generic::products::{Product, panel_size};
use crate::generic::tile_packing::FloatRows;
use crate::generic::tiles::{TileProduct, rounds_floats, tile_scratch};
use crate::interleaved::{GROUP_ROWS, deinterleave, interleaved_bytes};
use crate::simd::byte_tiles::BYTE_COLUMNS;
use crate::{ActivationForm, Activations, GgmlType, activation_bytes};

/// Operands of [`matmul`]: `out[j * out_stride + i] = sum_c w[i][c] * x[j][c]` for `i` in `0..m`, `j` in `0..n`.
#[derive(Clone, Copy, Debug)]
pub struct MatMul<'a> {
    /// Type of the weights.
    pub ty: GgmlType,
    /// `m` rows of weights, each `k` elements; needs no alignment.
    pub w: &'a [u8],
    /// How the rows lie in `w`.
    pub layout: WeightLayout,
    /// Rows of weights.
    pub m: usize,
    /// Elements of a row: whole blocks of the type.
    pub k: usize,
    /// `n` rows of activations, each `k` elements.
    pub x: Activations<'a>,
    /// Rows of activations.
    pub n: usize,
    /// Sums of floats may have another order with many columns than with few, which is faster.
    pub any_order: bool,
    /// Whether the last product with this scratch memory had the same activations and weights of the same type, and the memory is as that left it: what was prepared of the activations is
    /// then used again.
    pub again: bool,
}

impl MatMul<'_> {
    /// Bytes from one row to the next; of interleaved rows an eighth of a group's.
    fn row_stride(&self) -> usize {
        match self.layout {
            WeightLayout::Rows { stride } => stride,
            WeightLayout::Interleaved => interleaved_bytes(self.ty, self.k) / GROUP_ROWS,
        }
    }
}

/// How rows of weights lie in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WeightLayout {
    /// One after the other, as in a file.
    Rows {
        /// Bytes from one row to the next.
        stride: usize,
    },
    /// In groups of [`GROUP_ROWS`] rows as [`interleave`](crate::interleaved::interleave) writes them, one after the other. There are whole groups.
    Interleaved,
}

/// Floats of scratch memory that [`matmul`] needs for these sizes, with activations of any form.
pub fn matmul_scratch(k: usize, n: usize) -> usize {
    let (rows, stride) = panel_size(k);
    let floats = match n {
        0..=1 => 0,
        2..FLOAT_PANEL_COLUMNS => rows * stride,
        // At least as much as for fewer columns.
        _ => FLOAT_PANEL_SCRATCH.max(rows * stride),
    };
    let of_floats = floats + group_floats(k);
    of_floats.max(integer_scratch(k, n))
}

/// Floats of scratch memory for quantized activations.
fn integer_scratch(k: usize, n: usize) -> usize {
    panel_scratch(k, n)
        .max(tile_scratch(k, n))
        .max(byte_tile_scratch(k, n))
        .max(dot_scratch(n))
}

/// Floats that hold a group's rows of any type that can be interleaved: none takes more than 34 bytes for 32 weights.
const fn group_floats(k: usize) -> usize {
    GROUP_ROWS * k.div_ceil(32) * 34 / size_of::<f32>() + 1
}

/// Multiplies. To share the work, split the rows of `w` between threads, each with its part of `out` and scratch memory of its own.
///
/// With activations as floats, weights are decoded exactly, multiplied with them, and added up in f32. An element of the result does not
/// depend on how rows were split. It may depend on `n` by rounding: one column is computed in another way than several, and with [`MatMul::any_order`] those in another
/// way than many.
///
/// With quantized activations, which only types take that [`activation_form`](crate::activation_form) says it of, sums of products of integers
/// are exact within 16 or 32 elements, then added up in f32. An element of the result does not depend on how rows were split, nor on `n` among
/// those up to 8, nor among those above. Of interleaved rows and [`ActivationForm::I16Row`] it does not depend on `n` at all.
///
/// With activations as bfloat16, weights are rounded to bfloat16 as well, and added up in f32 by a unit that multiplies tiles. An element of the result does
/// not depend on how rows were split, nor on `n`.
///
/// # Panics
/// If the type cannot be dequantized or does not take the form of the activations, `k` is not whole blocks, a slice is too short, or the
/// scratch memory smaller than [`matmul_scratch`] says.
///
/// # Safety
/// For each `j < n` the `m` floats at `out + j * out_stride` are valid for writes, and nothing else reads or writes them, or
/// overlaps `args` with them, during the call. They need not be initialized.
pub unsafe fn matmul(args: &MatMul, out: *mut f32, out_stride: usize, scratch: &mut [f32]) {
    // SAFETY: the caller's promise; these kernels were chosen for this CPU.
    unsafe { matmul_with(kernels(), args, out, out_stride, scratch) }
}

/// [`matmul`] with given kernels.
///
/// # Safety
/// As for [`matmul`], and the CPU must have the kernels' instructions.
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
        .unwrap_or_else(|| panic!("{ty}: {k} elements are not whole blocks"));
    if m == 0 || n == 0 {
        return;
    }
    let needed = match args.layout {
        WeightLayout::Rows { stride } => (m - 1) * stride + row_bytes,
        WeightLayout::Interleaved => m.div_ceil(GROUP_ROWS) * interleaved_bytes(ty, k),
    };
    assert!(needed <= args.w.len(), "{} bytes of weights for {m} rows", args.w.len());
    let is_interleaved = args.layout == WeightLayout::Interleaved;
    assert!(
        !is_interleaved || m.is_multiple_of(GROUP_ROWS),
        "{m} rows are no whole groups"
    );
    // SAFETY: the weights are large enough as just asserted; the rest is the caller's promise.
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
                multiply_floats_by_tiles(kernels, args, rows, stride, out, out_stride, scratch);
            }
            Activations::Quantized { form, rows, stride } => {
                let of_type = kernels.int.find(ty);
                let of_type = of_type.unwrap_or_else(|| panic!("{ty}: no integer kernels"));
                check_activations((n - 1) * stride + activation_bytes(form, k), rows.len(), n);
                let is_16 = form == ActivationForm::I16Row;
                if is_16 && is_interleaved && n <= kernels.int.group_columns {
                    multiply_groups(kernels, of_type, args, rows, stride, out, out_stride, scratch);
                } else if is_16 && !is_interleaved && n < PANEL_COLUMNS {
                    multiply_rows(of_type, args, rows, stride, out, out_stride, scratch);
                } else {
                    multiply_panels(kernels, of_type, args, form, rows, stride, out, out_stride, scratch);
                }
            }
        }
    }
}

/// Multiplies tiles of bfloat16 that stay in the cache for some `rounds`, if the CPU has a unit for them: the multiply-adds that were done. For benchmarks, as
/// what the unit does at most.
pub fn multiply_tiles_in_cache(rounds: usize) -> Option<usize> {
    // SAFETY: these kernels were chosen for this CPU, and no other call is under way in this thread.
    kernels()
        .tile_unit
        .map(|unit| unsafe { (unit.multiply_in_cache)(rounds) })
}

/// The product of interleaved rows with rows of floats: each group is brought into the order of a file first.
///
/// # Safety
/// As for [`matmul_with`], and the weights are large enough.
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
        // SAFETY: the caller's promise, for rows of this group.
        unsafe {
            let out = out.add(i * GROUP_ROWS);
            multiply_floats(kernels, &args, x, x_stride, out, out_stride, scratch);
        }
    }
}

/// The product with rows of floats.
///
/// # Safety
/// As for [`matmul_with`], and the weights are large enough.
unsafe fn multiply_floats(
    kernels: &'static Kernels,
    args: &MatMul,
    x: &[f32],
    x_stride: usize,
    out: *mut f32,
    out_stride: usize,
    scratch: &mut [f32],
) {
    let &MatMul {
        ty,
        w,
        m,
        k,
        n,
        any_order,
        ..
    } = args;
    let kernels = kernels.of_type(ty);
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
    let kernel = match n {
        0..=1 => kernels.matvec,
        FLOAT_PANEL_COLUMNS.. if any_order => kernels.panels,
        _ => kernels.matmul,
    };
    // SAFETY: the operands are large enough as just asserted, the output as the caller promises, and so are the instructions.
    unsafe { kernel(&product) }
}

/// The product with few rows of [`ActivationForm::I16Row`].
///
/// # Safety
/// As for [`multiply_floats`], and the activations are large enough.
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
        again: args.again,
    };
    let kernel = if args.n == 1 { kernels.matvec } else { kernels.matmul };
    // SAFETY: the caller's promise.
    unsafe { kernel(&product) }
}

/// The product of groups with some rows of [`ActivationForm::I16Row`], a few of them at a time.
///
/// # Safety
/// As for [`multiply_rows`].
unsafe fn multiply_groups(
    kernels: &'static Kernels,
    of_type: &IntTypeKernels,
    args: &MatMul,
    x: &[u8],
    x_stride: usize,
    out: *mut f32,
    out_stride: usize,
    scratch: &mut [f32],
) {
    let by_tiles = kernels.tile_unit.and_then(|unit| unit.columns[args.ty.id() as usize]);
    let columns = of_groups(of_type, args.ty).columns;
    let needed = if by_tiles.is_some() {
        byte_tile_scratch(args.k, args.n)
    } else {
        0
    };
    check_scratch(needed, scratch);
    let mut first = 0;
    while first < args.n {
        let left = args.n - first;
        let (n, kernel) = match by_tiles {
            Some(kernels) if left >= LEAST_BYTE_COLUMNS => {
                let n = left.min(MOST_BYTE_COLUMNS);
                (n, kernels[(n - 1) / BYTE_COLUMNS])
            }
            _ => {
                // As many each time, not many and then a few.
                let n = left.div_ceil(left.div_ceil(columns.len()));
                (n, columns[n - 1])
            }
        };
        // SAFETY: the caller's promise, for columns below `n`.
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
                again: args.again,
            };
            kernel(&product);
        }
        first += n;
    }
}

/// The product of rows of floats with rows of bfloat16.
///
/// # Safety
/// As for [`multiply_rows`].
unsafe fn multiply_floats_by_tiles(
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
            dequantize: kernels.of_type(args.ty).dequantize,
        },
        x: x.as_ptr(),
        x_stride,
        n: args.n,
        out,
        out_stride,
        scratch: scratch.as_mut_ptr(),
    };
    // SAFETY: the caller's promise; the scratch memory is large enough as just asserted.
    unsafe { (kernels.over_tiles().multiply_floats)(&product) }
}

/// The kernels for groups.
fn of_groups(kernels: &IntTypeKernels, ty: GgmlType) -> &GroupKernels {
    let groups = kernels.groups.as_ref();
    groups.unwrap_or_else(|| panic!("{ty}: no kernels for interleaved rows"))
}

/// The product with rows of integers, by panels.
///
/// # Safety
/// As for [`multiply_rows`].
unsafe fn multiply_panels(
    kernels: &'static Kernels,
    of_type: &IntTypeKernels,
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
        ActivationForm::Bf16Row => kernels.over_tiles().multiply,
        ActivationForm::F32 => panic!("{ty}: activations are floats"),
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
            integers: of_type.integers,
            layout: match args.layout {
                WeightLayout::Rows { .. } => RowLayout::Rows(of_type.unpack),
                WeightLayout::Interleaved => RowLayout::Groups(of_groups(of_type, ty).fill),
            },
        },
        x: x.as_ptr(),
        x_stride,
        n: args.n,
        out,
        out_stride,
        scratch: scratch.as_mut_ptr(),
    };
    // SAFETY: the caller's promise; the scratch memory is large enough as just asserted.
    unsafe { kernel(&product) }
}

fn check_scratch(needed: usize, scratch: &[f32]) {
    let len = scratch.len();
    assert!(needed <= len, "scratch memory of {len} floats, {needed} needed");
}

fn check_activations(needed: usize, len: usize, n: usize) {
    assert!(
        needed <= len,
        "activations of length {len} for {n} rows that need {needed}"
    );
}
