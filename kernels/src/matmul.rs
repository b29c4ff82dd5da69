//! The matrix product that models spend their time in.

use crate::GgmlType;
use crate::dispatch::{Kernels, kernels};
use crate::generic::products::{Product, panel_rows};

/// Operands of [`matmul`]: `out[j * out_stride + i] = sum_c w[i][c] * x[j * x_stride + c]` for `i` in `0..m`, `j` in `0..n`.
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
    pub x: &'a [f32],
    /// Elements from one row of activations to the next.
    pub x_stride: usize,
    /// Rows of activations.
    pub n: usize,
}

/// Floats of scratch memory that [`matmul`] needs for these sizes.
pub fn matmul_scratch(k: usize, n: usize) -> usize {
    if n > 1 { panel_rows(k) * k } else { 0 }
}

/// Multiplies. To share the work, split the rows of `w` between threads, each with its part of `out` and scratch memory of its own.
///
/// Weights are decoded exactly, multiplied with the activations as they are, and added up in f32. An element of the result does not depend
/// on how rows were split. It may depend on `n` by rounding: one column is computed in another way than several.
///
/// # Panics
/// If the type cannot be dequantized, `k` is not whole blocks, a slice is too short, or the scratch memory smaller than
/// [`matmul_scratch`] says.
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
    let &MatMul {
        ty,
        w,
        row_stride,
        m,
        k,
        x,
        x_stride,
        n,
    } = args;
    let kernels = kernels.of_type(ty);
    let row_bytes = ty
        .row_bytes(k)
        .unwrap_or_else(|| panic!("{ty}: {k} elements are not whole blocks"));
    if m == 0 || n == 0 {
        return;
    }
    assert!(
        (m - 1) * row_stride + row_bytes <= w.len(),
        "{} bytes of weights for {m} rows",
        w.len()
    );
    assert!(
        (n - 1) * x_stride + k <= x.len(),
        "{} activations for {n} rows",
        x.len()
    );
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
