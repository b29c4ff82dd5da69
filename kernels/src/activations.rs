//! Forms of activations in a matmul: f32, or quantized to integers or bf16.

use crate::GgmlType;
use crate::dispatch::{Kernels, kernels};
use crate::generic::integers::i16_row_bytes;
use crate::generic::pair_panels::{self, pair_row_bytes};
use crate::generic::tiles::{bf16_row_bytes, rounds_floats};
use crate::generic::u8_chunks::u8_row_bytes;
pub use crate::limits::{FAST_COLUMNS, FASTEST_COLUMNS};
use crate::simd::tiles::STEP;

/// Accuracy of matmuls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Precision {
    /// Computes with f32 activations and f32 arithmetic.
    Exact,
    /// 16-bit integer activations: the fastest form whose error is negligible for a model's output.
    High,
    /// Like [`Precision::High`] for fewer than [`FAST_COLUMNS`] rows of activations, and a cheaper form for
    /// more, as in prefill.
    ///
    /// - With AMX, activations and weights are rounded to bf16, for all types except F32.
    /// - With AVX512-BF16 on AMD CPUs, activations of BF16 weights are also bf16.
    /// - Otherwise, activations and F16 and BF16 weights are rounded to 16-bit integers, with a smaller error than
    ///   that of f16.
    /// - With VNNI, activations are 8-bit integers for all types that have integer kernels.
    /// - Otherwise, activations are 8-bit integers for weights of at most 6 bits.
    ///
    /// 8-bit integers are 1.4 (AVX2) to 2.3 times as fast as [`Precision::High`].
    #[default]
    Fast,
    /// Like [`Precision::Fast`], with 8-bit integers for [`FASTEST_COLUMNS`] or more rows of activations, except
    /// with AMX. The results of a sequence then depend on the number of sequences or drafts computed with it.
    Fastest,
}

impl Precision {
    /// Returns true if many rows of activations may have a cheaper form.
    pub fn is_fast(self) -> bool {
        matches!(self, Precision::Fast | Precision::Fastest)
    }

    /// Minimum rows of activations for 8-bit integers.
    fn byte_columns(self) -> usize {
        match self {
            Precision::Exact | Precision::High => usize::MAX,
            Precision::Fast => FAST_COLUMNS,
            Precision::Fastest => FASTEST_COLUMNS,
        }
    }
}

/// Format of a row of activations.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ActivationForm {
    /// 32-bit floats.
    F32,
    /// 16-bit integers with one scale per row, and sums per 16 elements. The error is at most 1/65278 of the
    /// row's largest magnitude.
    I16Row,
    /// Unsigned 8-bit integers with one scale and 4 outliers as floats per 256 elements, and sums per 16
    /// elements. The error is at most 1/252 of the fifth largest magnitude of the 256.
    U8Chunk,
    /// 16-bit integers with one scale per 256 elements, for weights of 16-bit floats, which are rounded in the same
    /// way. The error is at most 1/65534 of the largest magnitude of the 256, or 1/92600 of their norm if that is
    /// more.
    I16Pairs,
    /// bf16, for CPUs with AMX or fast bf16 dot products; weights are also rounded to bf16. The relative error is at
    /// most 1/256.
    Bf16Row,
}

/// Rows of activations, the right operand of [`matmul`](crate::matmul()).
#[derive(Clone, Copy, Debug)]
pub enum Activations<'a> {
    /// Rows of f32 activations.
    F32 {
        /// Buffer of `n` rows of `k` floats.
        x: &'a [f32],
        /// Distance between rows in floats.
        stride: usize,
    },
    /// Quantized rows, written by [`quantize_activations`].
    Quantized {
        /// Form of the rows; not [`ActivationForm::F32`].
        form: ActivationForm,
        /// `n` rows of [`activation_bytes`] bytes. Alignment to 64 bytes is optional but faster.
        rows: &'a [u8],
        /// Distance between rows in bytes.
        stride: usize,
    },
}

/// Returns the form of activations for a matmul of weights of type `ty` with `n` rows of activations. The form is the
/// same for all `n` below [`FAST_COLUMNS`], except with [`Precision::Fastest`]. Decoding a few tokens together thus
/// gives the same results as decoding each separately.
pub fn activation_form(ty: GgmlType, n: usize, precision: Precision) -> ActivationForm {
    form_with(kernels(), ty, n, precision)
}

/// Selects the form like [`activation_form`] for the given kernels.
pub(crate) fn form_with(kernels: &'static Kernels, ty: GgmlType, n: usize, precision: Precision) -> ActivationForm {
    let is_fast = precision.is_fast() && n >= FAST_COLUMNS;
    match (precision, kernels.int.find(ty)) {
        (_, Some(_)) if is_fast && kernels.tile_unit.is_some() => ActivationForm::Bf16Row,
        (_, None) if is_fast && rounds_to_bf16(kernels, ty) => ActivationForm::Bf16Row,
        (_, None) if is_fast && kernels.int.pairs.is_some() && pair_panels::is_for(ty) => ActivationForm::I16Pairs,
        (Precision::Exact, _) | (_, None) => ActivationForm::F32,
        (_, Some(type_kernels))
            if n >= precision.byte_columns()
                && kernels.tile_unit.is_none()
                && (kernels.int.prefers_u8 || type_kernels.integers.i16_sums_per_run() > 0) =>
        {
            ActivationForm::U8Chunk
        }
        _ => ActivationForm::I16Row,
    }
}

/// Returns true if matmuls of weights without integers round to bf16. F16 weights have more precision than bf16: only
/// tile units are fast enough to justify that error.
fn rounds_to_bf16(kernels: &Kernels, ty: GgmlType) -> bool {
    let is_justified = ty == GgmlType::BF16 || kernels.tile_unit.is_some();
    is_justified && kernels.float_tiles.is_some() && rounds_floats(ty)
}

/// Returns the size in bytes of a row of `k` activations: a multiple of 64, except for
/// [`ActivationForm::F32`].
pub const fn activation_bytes(form: ActivationForm, k: usize) -> usize {
    match form {
        ActivationForm::F32 => k * size_of::<f32>(),
        ActivationForm::I16Row => i16_row_bytes(k),
        ActivationForm::U8Chunk => u8_row_bytes(k),
        ActivationForm::I16Pairs => pair_row_bytes(k),
        ActivationForm::Bf16Row => bf16_row_bytes(k),
    }
}

/// Writes a row of activations in `form`. If an activation is not finite, neither is any result computed from
/// the row.
///
/// # Panics
/// Panics if `out` is not [`activation_bytes`] long, or if [`activation_form`] never returns `form` on this CPU.
pub fn quantize_activations(form: ActivationForm, x: &[f32], out: &mut [u8]) {
    quantize_with(kernels(), form, x, out);
}

/// Elements of a bf16 row that are written together.
pub const BF16_STEP: usize = STEP;

/// Rounds activations to bf16 as in a row of [`ActivationForm::Bf16Row`], padding with zeros to a multiple of
/// [`BF16_STEP`].
///
/// # Panics
/// Panics if `out` is not two bytes per padded element, or the CPU has no bf16 kernels.
pub fn round_to_bf16(x: &[f32], out: &mut [u8]) {
    let needed = x.len().next_multiple_of(BF16_STEP) * size_of::<u16>();
    assert!(
        out.len() == needed,
        "expected {needed} bytes of output, found {}",
        out.len()
    );
    // SAFETY: `out` has two bytes for each padded element, asserted above; `kernels()` matches this CPU.
    unsafe { (kernels().bf16_kernels().quantize)(x.as_ptr(), x.len(), out.as_mut_ptr()) }
}

/// Quantizes like [`quantize_activations`] with the given kernels, whose instructions the CPU must support.
pub(crate) fn quantize_with(kernels: &'static Kernels, form: ActivationForm, x: &[f32], out: &mut [u8]) {
    let needed = activation_bytes(form, x.len());
    assert!(
        out.len() == needed,
        "expected {needed} bytes for a row of activations, found {}",
        out.len()
    );
    match form {
        ActivationForm::F32 => out.copy_from_slice(bytemuck::cast_slice(x)),
        // SAFETY: `out` has `activation_bytes(form, x.len())` bytes, asserted above; the CPU supports the
        // kernels.
        ActivationForm::I16Row => unsafe { (kernels.int.quantize_i16)(x.as_ptr(), x.len(), out.as_mut_ptr()) },
        // SAFETY: `out` has `activation_bytes(form, x.len())` bytes, asserted above; the CPU supports the
        // kernels.
        ActivationForm::U8Chunk => unsafe { (kernels.int.quantize_u8)(x.as_ptr(), x.len(), out.as_mut_ptr()) },
        // SAFETY: `out` has `activation_bytes(form, x.len())` bytes, asserted above; the CPU supports the
        // kernels.
        ActivationForm::I16Pairs => unsafe { (kernels.pair_kernels().quantize)(x.as_ptr(), x.len(), out.as_mut_ptr()) },
        // SAFETY: `out` has `activation_bytes(form, x.len())` bytes, asserted above; the CPU supports the
        // kernels.
        ActivationForm::Bf16Row => unsafe {
            (kernels.bf16_kernels().quantize)(x.as_ptr(), x.len(), out.as_mut_ptr());
        },
    }
}
