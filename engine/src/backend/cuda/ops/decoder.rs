//! Selects the decoder of a matmul's weights.

use kernels::GgmlType;

use super::super::kernel::Value;
use super::super::parts::kernel_type;
use super::arguments::TensorArg;
use crate::graph::Tensor;

/// Returns the decoder type for weights. Floats are read in vectors if aligned.
pub(super) fn decoder(weights: &Tensor, w: &TensorArg) -> Value {
    if !weights.layout.is_plain()
        && let Some(name) = kernel_type(weights.ty, weights.ne[0])
    {
        return Value::Word(name);
    }
    match weights.ty {
        GgmlType::F32 if w.has_vectors(4, 16) => Value::Word("f32x4"),
        GgmlType::F16 if w.has_vectors(2, 16) => Value::Word("f16x8"),
        GgmlType::BF16 if w.has_vectors(2, 16) => Value::Word("bf16x8"),
        ty => Value::Type(ty),
    }
}
