//! In which form activations enter a product: as they are, or as integers.

use crate::GgmlType;
use crate::dispatch::{Kernels, kernels};
use crate::generic::integers::i16_row_bytes;
use crate::generic::tiles::{bf16_row_bytes, rounds_floats};
use crate::generic::u8_chunks::u8_row_bytes;
use crate::simd::tiles::STEP;

/// What products may cost in accuracy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Precision {
    /// Activations as they are: f32 arithmetic.
    Exact,
    /// Integers of 16 bits: the fastest form that changes no result of a model to speak of.
    High,
    /// As [`Precision::High`] for few rows of activations. For [`FAST_COLUMNS`] and more, as in prefill, integers of 8 bits where the weights have at
    /// most 6: 1.4 (AVX2) to 2.3 times as fast. With VNNI those are for weights of all types that have integers; with AMX bfloat16 instead, to which weights of all types but
    /// F32 are rounded, too.
    #[default]
    Fast,
}

/// A form of a row of activations.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ActivationForm {
    /// Floats.
    F32,
    /// Integers of 16 bits with one scale for the row, and the sums of each 16. An activation is off by at most 1/65278 of the row's largest
    /// magnitude.
    I16Row,
    /// Unsigned integers of 8 bits with a scale for each 256, of which the 4 largest are kept as floats, and the sums of each 16. An activation
    /// is off by at most 1/252 of the fifth largest magnitude of its 256.
    U8Chunk,
    /// bfloat16, for CPUs with AMX, which multiplies them with weights rounded to bfloat16. An activation is off by at most 1/256 of itself.
    Bf16Row,
}

/// Rows of activations, the right operand of [`matmul`](crate::matmul()).
#[derive(Clone, Copy, Debug)]
pub enum Activations<'a> {
    /// Rows of floats.
    F32 {
        /// The rows, each of `k` floats.
        x: &'a [f32],
        /// Floats from one row to the next.
        stride: usize,
    },
    /// Rows as [`quantize_activations`] writes them.
    Quantized {
        /// Their form, not [`ActivationForm::F32`].
        form: ActivationForm,
        /// The rows, each of [`activation_bytes`]; need no alignment, but are faster to read when aligned to 64 bytes.
        rows: &'a [u8],
        /// Bytes from one row to the next.
        stride: usize,
    },
}

/// Columns from which on products of 16-bit integers with rows as in a file, and with interleaved rows on CPUs with AVX-VNNI alone, go by panels: unpacking and interleaving weights
/// once pays for itself.
pub(crate) const PANEL_COLUMNS: usize = 9;

/// Rows of activations from which on [`Precision::Fast`] takes integers of 8 bits. Short questions, a few sequences that are decoded
/// together and batches that verify drafts have the results of [`Precision::High`].
pub const FAST_COLUMNS: usize = 32;

/// The form in which a product of weights of type `ty` with `n` rows of activations wants those. The same for all `n` below [`FAST_COLUMNS`], so that
/// a few tokens that are decoded together have the results that they have one by one.
pub fn activation_form(ty: GgmlType, n: usize, precision: Precision) -> ActivationForm {
    form_with(kernels(), ty, n, precision)
}

/// [`activation_form`] with given kernels.
pub(crate) fn form_with(kernels: &'static Kernels, ty: GgmlType, n: usize, precision: Precision) -> ActivationForm {
    let by_tiles = precision == Precision::Fast && n >= FAST_COLUMNS && kernels.tile_unit.is_some();
    match (precision, kernels.int.find(ty)) {
        (_, Some(_)) if by_tiles => ActivationForm::Bf16Row,
        (_, None) if by_tiles && rounds_floats(ty) => ActivationForm::Bf16Row,
        (Precision::Exact, _) | (_, None) => ActivationForm::F32,
        (Precision::Fast, Some(of_type))
            if n >= FAST_COLUMNS && (kernels.int.prefers_dots || of_type.integers.sums_of_16_bits() > 0) =>
        {
            ActivationForm::U8Chunk
        }
        _ => ActivationForm::I16Row,
    }
}

/// Bytes of a row of `k` activations: a multiple of 64 unless it is a row of floats.
pub const fn activation_bytes(form: ActivationForm, k: usize) -> usize {
    match form {
        ActivationForm::F32 => k * size_of::<f32>(),
        ActivationForm::I16Row => i16_row_bytes(k),
        ActivationForm::U8Chunk => u8_row_bytes(k),
        ActivationForm::Bf16Row => bf16_row_bytes(k),
    }
}

/// Writes a row of activations in a form. If one of them is not finite, no product with the row is.
///
/// # Panics
/// If `out` is not [`activation_bytes`] long, or the form is not one of those that [`activation_form`] says on this CPU.
pub fn quantize_activations(form: ActivationForm, x: &[f32], out: &mut [u8]) {
    quantize_with(kernels(), form, x, out);
}

/// Elements of a row of bfloat16 that are written together.
pub const BF16_STEP: usize = STEP;

/// Writes activations as they lie in a row of [`ActivationForm::Bf16Row`], with zeros up to a multiple of [`BF16_STEP`].
///
/// # Panics
/// If `out` is not two bytes for each of so many, or the CPU has no unit for tiles.
pub fn round_to_bf16(x: &[f32], out: &mut [u8]) {
    let needed = x.len().next_multiple_of(BF16_STEP) * size_of::<u16>();
    assert!(out.len() == needed, "{} bytes for {needed}", out.len());
    // SAFETY: the lengths agree, and these kernels are for this CPU.
    unsafe { (kernels().over_tiles().quantize)(x.as_ptr(), x.len(), out.as_mut_ptr()) }
}

/// [`quantize_activations`] with given kernels, whose instructions the CPU has.
pub(crate) fn quantize_with(kernels: &'static Kernels, form: ActivationForm, x: &[f32], out: &mut [u8]) {
    let needed = activation_bytes(form, x.len());
    assert!(out.len() == needed, "{} bytes for a row of {needed}", out.len());
    match form {
        ActivationForm::F32 => out.copy_from_slice(bytemuck::cast_slice(x)),
        // SAFETY: the lengths agree, and these kernels are for this CPU.
        ActivationForm::I16Row => unsafe { (kernels.int.quantize_i16)(x.as_ptr(), x.len(), out.as_mut_ptr()) },
        // SAFETY: as above.
        ActivationForm::U8Chunk => unsafe { (kernels.int.quantize_u8)(x.as_ptr(), x.len(), out.as_mut_ptr()) },
        // SAFETY: as above.
        ActivationForm::Bf16Row => unsafe {
            (kernels.over_tiles().quantize)(x.as_ptr(), x.len(), out.as_mut_ptr());
        },
    }
}
