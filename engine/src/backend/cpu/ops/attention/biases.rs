//! Additive score terms that depend on the distance between query and key: learned biases and ALiBi slopes.

use crate::backend::cpu::view::Source;
use crate::graph::Buckets;

/// Learned biases by relative position.
pub(super) struct Biases<'a> {
    /// `[n_head, n_buckets]`
    table: &'a [f32],
    /// Table row for each distance up to [`Buckets::FAR`], relative to the first row of the direction.
    near: [u8; Buckets::FAR + 1],
    /// First bias table row for keys after the query.
    behind: usize,
}

impl<'a> Biases<'a> {
    pub(super) fn new(table: Source<'a>, buckets: Buckets) -> Biases<'a> {
        let side = buckets.side(table.tensor.ne[1]);
        Biases {
            table: table.floats(0, table.tensor.nelements()),
            // The table has fewer than 256 rows.
            near: std::array::from_fn(|distance| Buckets::near(side, distance) as u8),
            behind: side,
        }
    }

    /// Returns the bias of head `head` for a key `ahead` positions after the query (negative: before).
    pub(super) fn of(&self, buckets: Buckets, n_head: usize, head: usize, ahead: i64) -> f32 {
        let around = buckets == Buckets::Around;
        let distance = if around {
            ahead.unsigned_abs()
        } else {
            ahead.min(0).unsigned_abs()
        };
        let near = self.near[distance.min(Buckets::FAR as u64) as usize];
        let first = if around && ahead > 0 { self.behind } else { 0 };
        self.table[head + n_head * (first + usize::from(near))]
    }
}

/// Returns the ALiBi slope of a head.
///
/// The slopes form a geometric series over the largest power of two of heads. The remaining heads
/// interpolate, as in the reference implementation.
pub(super) fn alibi_slope(max_bias: f32, head: usize, n_head: usize) -> f32 {
    let power = 1usize << n_head.ilog2();
    let (first, exponent) = if head < power {
        (-max_bias / power as f32, head + 1)
    } else {
        (-max_bias / 2.0 / power as f32, 2 * (head - power) + 1)
    };
    (first * exponent as f32).exp2()
}
