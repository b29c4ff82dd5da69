//! GELU as ggml's CPU backend computes it: from a table of f16 values.
//!
//! Between -10 and 10 operand and result are rounded to f16, outside the result is 0 or the operand. The graph of a model is built of
//! ordinary ops for that, so that no backend knows of it.

use crate::builder::{BuildGraph, Builder};
use crate::graph::{TensorId, Unary};

/// A graph with the table's GELU in place of every exact one.
pub(super) struct TableGelu(pub(super) Box<dyn BuildGraph>);

impl BuildGraph for TableGelu {
    fn build(&self, b: &mut Builder<'_>) -> TensorId {
        b.replace_unary(Unary::Gelu, table_gelu);
        self.0.build(b)
    }

    fn encode(&self, b: &mut Builder<'_>) -> Option<TensorId> {
        b.replace_unary(Unary::Gelu, table_gelu);
        self.0.encode(b)
    }

    fn embedding(&self, b: &mut Builder<'_>, pooled: TensorId) -> Option<TensorId> {
        b.replace_unary(Unary::Gelu, table_gelu);
        self.0.embedding(b, pooled)
    }

    fn rank(&self, b: &mut Builder<'_>, pooled: TensorId) -> Option<TensorId> {
        b.replace_unary(Unary::Gelu, table_gelu);
        self.0.rank(b, pooled)
    }
}

/// Where the table ends.
const END: f32 = 10.0;

fn table_gelu(b: &mut Builder<'_>, x: TensorId) -> TensorId {
    let inside = b.clamp(x, -END, END);
    let inside = to_f16(b, inside);
    let y = b.unary(Unary::Gelu, inside);
    let y = to_f16(b, y);
    // GELU of the upper end is that end itself, of the lower end 0: only what lies above the upper end is missing.
    let above = b.shift(x, -END);
    let above = b.unary(Unary::Relu, above);
    b.add(y, above)
}

/// x rounded to the 11 bits of an f16's significand, of the 24 of an f32 (Veltkamp's splitting: T. J. Dekker, "A floating-point technique for
/// extending the available precision", 1971). Below 2^-14, where an f16 has fewer bits, this rounds less: by at most 2^-25.
fn to_f16(b: &mut Builder<'_>, x: TensorId) -> TensorId {
    let scaled = b.scale(x, 8193.0);
    let rest = b.sub(scaled, x);
    b.sub(scaled, rest)
}
