//! Running state of the online softmax.

use kernels::rows;

/// Softmax state of a unit's queries: the maximum score, the sum of `exp(score - max)`, and the values
/// weighted by the same factors.
pub(super) struct State<'a> {
    pub(super) max: &'a mut [f32],
    pub(super) sum: &'a mut [f32],
    /// `[n_queries, dv]`
    pub(super) values: &'a mut [f32],
}

impl<'a> State<'a> {
    pub(super) fn new(floats: &'a mut [f32], n_queries: usize) -> State<'a> {
        let (max, rest) = floats.split_at_mut(n_queries);
        let (sum, values) = rest.split_at_mut(n_queries);
        State { max, sum, values }
    }

    pub(super) fn clear(&mut self) {
        self.max.fill(f32::NEG_INFINITY);
        self.sum.fill(0.0);
        self.values.fill(0.0);
    }

    pub(super) fn values_of(&mut self, query: usize) -> &mut [f32] {
        let dv = self.values.len() / self.max.len();
        &mut self.values[query * dv..(query + 1) * dv]
    }

    /// Raises the maximum score of a query to `max`, and rescales the sum and the values if necessary.
    pub(super) fn raise(&mut self, query: usize, max: f32) {
        let before = std::mem::replace(&mut self.max[query], max);
        if max > before && self.sum[query] > 0.0 {
            let factor = (before - max).exp();
            self.sum[query] *= factor;
            rows::scale_in_place(self.values_of(query), factor, 0.0);
        }
    }

    /// Merges the results of other cells into this state: queries `first..` of a state of `n_queries`
    /// queries.
    pub(super) fn merge(&mut self, other: &[f32], n_queries: usize, first: usize) {
        let (max, rest) = other.split_at(n_queries);
        let (sum, values) = rest.split_at(n_queries);
        let dv = values.len() / n_queries;
        for query in 0..self.max.len() {
            let from = first + query;
            if sum[from] > 0.0 {
                self.raise(query, self.max[query].max(max[from]));
                let factor = (max[from] - self.max[query]).exp();
                self.sum[query] += sum[from] * factor;
                rows::axpy(factor, &values[from * dv..(from + 1) * dv], self.values_of(query));
            }
        }
    }
}
