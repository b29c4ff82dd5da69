//! GELU as in ggml's CPU backend: from a table of f16 values of the tanh approximation.
//!
//! llama.cpp also computes the exact GELU of published models (BERT, Falcon, GPT-NeoX) from this table, so both
//! functions are replaced. Between -10 and 10, operand and result are rounded to f16; outside, the result is 0 or the
//! operand. The model's graph computes this with ordinary ops, so backends need no support for it.

use crate::builder::{BuildGraph, Builder};
use crate::graph::{TensorId, Unary};

/// A graph with every GELU, exact or approximated, replaced by the table's.
pub(super) struct TableGelu(pub(super) Box<dyn BuildGraph>);

impl BuildGraph for TableGelu {
    fn build(&self, b: &mut Builder<'_>) -> TensorId {
        use_table(b);
        self.0.build(b)
    }

    fn encode(&self, b: &mut Builder<'_>) -> Option<TensorId> {
        use_table(b);
        self.0.encode(b)
    }

    fn embedding(&self, b: &mut Builder<'_>, pooled: TensorId) -> Option<TensorId> {
        use_table(b);
        self.0.embedding(b, pooled)
    }

    fn rank(&self, b: &mut Builder<'_>, pooled: TensorId) -> Option<TensorId> {
        use_table(b);
        self.0.rank(b, pooled)
    }
}

fn use_table(b: &mut Builder<'_>) {
    b.replace_unary(&[Unary::Gelu, Unary::GeluErf], table_gelu);
}

/// Upper end of the GELU table's input range.
const END: f32 = 10.0;

fn table_gelu(b: &mut Builder<'_>, x: TensorId) -> TensorId {
    let inside = b.clamp(x, -END, END);
    let inside = to_f16(b, inside);
    let y = b.unary(Unary::Gelu, inside);
    let y = to_f16(b, y);
    // GELU equals the operand at the upper end and 0 at the lower end, so only the excess over the upper end
    // must be added.
    let above = b.shift(x, -END);
    let above = b.unary(Unary::Relu, above);
    b.add(y, above)
}

/// Rounds x from 24 to the 11 significant bits of f16 (Veltkamp splitting: T. J. Dekker, "A floating-point
/// technique for extending the available precision", 1971). Below 2^-14, where f16 has fewer bits, the
/// rounding error is smaller than f16's by at most 2^-25.
fn to_f16(b: &mut Builder<'_>, x: TensorId) -> TensorId {
    let scaled = b.scale(x, 8193.0);
    let rest = b.sub(scaled, x);
    b.sub(scaled, rest)
}
