//! In which form activations enter a product: as they are, or as integers.

use crate::GgmlType;
use crate::dispatch::{Kernels, kernels};
use crate::generic::integers::i16_row_bytes;

/// What products may cost in accuracy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Precision {
    /// Activations as they are: f32 arithmetic.
    Exact,
    /// The fastest form that changes no result of a model to speak of.
    #[default]
    Default,
}

/// A form of a row of activations.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ActivationForm {
    /// Floats.
    F32,
    /// Integers of 16 bits with one scale for the row, and the sums of each 16. An activation is off by at most 1/65534 of the row's largest
    /// magnitude.
    I16Row,
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

/// The form in which a product of weights of type `ty` with `n` rows of activations wants those. The same for all `n` up to 8, so that
/// tokens that are decoded together have the results that they have one by one.
pub fn activation_form(ty: GgmlType, n: usize, precision: Precision) -> ActivationForm {
    let _ = n;
    match precision {
        Precision::Default if kernels().int.find(ty).is_some() => ActivationForm::I16Row,
        _ => ActivationForm::F32,
    }
}

/// Bytes of a row of `k` activations: a multiple of 64 unless it is a row of floats.
pub const fn activation_bytes(form: ActivationForm, k: usize) -> usize {
    match form {
        ActivationForm::F32 => k * size_of::<f32>(),
        ActivationForm::I16Row => i16_row_bytes(k),
    }
}

/// Writes a row of activations in a form. If one of them is not finite, no product with the row is.
///
/// # Panics
/// If `out` is not [`activation_bytes`] long.
pub fn quantize_activations(form: ActivationForm, x: &[f32], out: &mut [u8]) {
    quantize_with(kernels(), form, x, out);
}

/// [`quantize_activations`] with given kernels, whose instructions the CPU has.
pub(crate) fn quantize_with(kernels: &'static Kernels, form: ActivationForm, x: &[f32], out: &mut [u8]) {
    let needed = activation_bytes(form, x.len());
    assert!(out.len() == needed, "{} bytes for a row of {needed}", out.len());
    match form {
        ActivationForm::F32 => out.copy_from_slice(bytemuck::cast_slice(x)),
        // SAFETY: the lengths agree, and these kernels are for this CPU.
        ActivationForm::I16Row => unsafe { (kernels.int.quantize_i16)(x.as_ptr(), x.len(), out.as_mut_ptr()) },
    }
}
