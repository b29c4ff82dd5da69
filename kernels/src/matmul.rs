//! The matrix product that models spend their time in.

use crate::activations::PANEL_COLUMNS;
use crate::dispatch::{IntTypeKernels, Kernels, kernels};
use crate::generic::int_products::IntProduct;
use crate::generic::integers::CHUNK;
use crate::generic::panel_products::{PanelProduct, panel_scratch};
use crate::generic::panels::WeightRows;
use crate::generic::products::{Product, panel_size};
use crate::{ActivationForm, Activations, GgmlType, activation_bytes};

/// Operands of [`matmul`]: `out[j * out_stride + i] = sum_c w[i][c] * x[j][c]` for `i` in `0..m`, `j` in `0..n`.
#[derive(Clone, Copy, Debug)]
pub struct MatMul<'a> {
    /// Type of the weights.
    pub ty: GgmlType,
    /// `m` rows of weights, each `k` elements; needs no alignment.
    pub w: &'a [u8],
    /// Bytes from one row of weights to the next.
    pub row_stride: usize,
    /// Rows of weights.
    pub m: usize,
    /// Elements of a row: whole blocks of the type.
    pub k: usize,
    /// `n` rows of activations, each `k` elements.
    pub x: Activations<'a>,
    /// Rows of activations.
    pub n: usize,
}

/// Floats of scratch memory that [`matmul`] needs for these sizes, with activations of any form.
pub fn matmul_scratch(k: usize, n: usize) -> usize {
    let (rows, stride) = panel_size(k);
    let floats = if n > 1 { rows * stride } else { 0 };
    floats.max(panel_scratch(k))
}

/// Multiplies. To share the work, split the rows of `w` between threads, each with its part of `out` and scratch memory of its own.
///
/// With activations as floats, weights are decoded exactly, multiplied with them, and added up in f32. An element of the result does not
/// depend on how rows were split. It may depend on `n` by rounding: one column is computed in another way than several.
///
/// With quantized activations, which only types take that [`activation_form`](crate::activation_form) says it of, sums of products of integers
/// are exact within 16 or 32 elements, then added up in f32. An element of the result does not depend on how rows were split, nor on `n` among
/// those up to 8, nor among those above.
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
    assert!(
        (m - 1) * args.row_stride + row_bytes <= args.w.len(),
        "{} bytes of weights for {m} rows",
        args.w.len()
    );
    // SAFETY: the weights are large enough as just asserted; the rest is the caller's promise.
    unsafe {
        match args.x {
            Activations::F32 { x, stride } => multiply_floats(kernels, args, x, stride, out, out_stride, scratch),
            Activations::Quantized { form, rows, stride } => {
                let of_type = kernels.int.find(ty);
                let of_type = of_type.unwrap_or_else(|| panic!("{ty}: no integer kernels"));
                check_activations((n - 1) * stride + activation_bytes(form, k), rows.len(), n);
                if form == ActivationForm::I16Row && n < PANEL_COLUMNS {
                    multiply_rows(of_type, args, rows, stride, out, out_stride);
                } else {
                    multiply_panels(kernels, of_type, args, form, rows, stride, out, out_stride, scratch);
                }
            }
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
        row_stride,
        m,
        k,
        n,
        ..
    } = args;
    let kernels = kernels.of_type(ty);
    check_activations((n - 1) * x_stride + k, x.len(), n);
    let needed = matmul_scratch(k, n);
    assert!(
        needed <= scratch.len(),
        "scratch memory of {} floats, {needed} needed",
        scratch.len()
    );
    let product = Product {
        w: w.as_ptr(),
        row_stride,
        m,
        k,
        x: x.as_ptr(),
        x_stride,
        n,
        out,
        out_stride,
        panel: scratch.as_mut_ptr(),
    };
    let kernel = if n == 1 { kernels.matvec } else { kernels.matmul };
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
) {
    let product = IntProduct {
        w: args.w.as_ptr(),
        row_stride: args.row_stride,
        m: args.m,
        k: args.k,
        x: x.as_ptr(),
        x_stride,
        n: args.n,
        out,
        out_stride,
    };
    let kernel = if args.n == 1 { kernels.matvec } else { kernels.matmul };
    // SAFETY: the caller's promise.
    unsafe { kernel(&product) }
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
    let kernel = match (form, of_type.integers.bits) {
        (ActivationForm::I16Row, _) => kernels.int.panels_i16,
        (ActivationForm::I8Block16, ..=5) => kernels.int.panels_i8,
        (ActivationForm::I8Block16, 6) => kernels.int.panels_i8_centered,
        _ => panic!("{ty}: activations cannot be {form:?}"),
    };
    let needed = panel_scratch(args.k);
    assert!(
        needed <= scratch.len(),
        "scratch memory of {} floats, {needed} needed",
        scratch.len()
    );
    let product = PanelProduct {
        w: WeightRows {
            w: args.w.as_ptr(),
            row_stride: args.row_stride,
            m: args.m,
            k: args.k,
            chunk_bytes: CHUNK / ty.block_size() * ty.block_bytes(),
            integers: of_type.integers,
            unpack: of_type.unpack,
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

fn check_activations(needed: usize, len: usize, n: usize) {
    assert!(
        needed <= len,
        "activations of length {len} for {n} rows that need {needed}"
    );
}
