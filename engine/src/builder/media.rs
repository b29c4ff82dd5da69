//! Rows of media: the patches that encoders read, and the rows that language models read in place of embeddings.

use kernels::GgmlType;

use crate::graph::TensorId;

use super::handles::Vector;
use super::{BatchMedia, Builder};

impl Builder<'_> {
    /// Returns the input of patches, f32 `[width, T]`.
    pub fn patches(&mut self, width: usize) -> TensorId {
        let n = self.params.n_tokens;
        let g = &mut *self.g;
        *self
            .inputs
            .patches
            .get_or_insert_with(|| g.input(GgmlType::F32, [width, n, 1, 1], "patches"))
    }

    /// Replaces the columns of `x [n_embd, T]` that belong to media by their rows.
    pub fn with_media(&mut self, x: TensorId) -> TensorId {
        if self.params.media == BatchMedia::None {
            return x;
        }
        let [n_embd, n, ..] = self.g.tensor(x).ne;
        let g = &mut *self.g;
        let (rows, keep) = *self.inputs.media.get_or_insert_with(|| {
            let rows = g.input(GgmlType::F32, [n_embd, n, 1, 1], "media");
            (rows, g.input(GgmlType::F32, [1, n, 1, 1], "is_token"))
        });
        let kept = self.mul(x, keep);
        self.add(kept, rows)
    }

    /// Groups `n` consecutive columns of `x [d, T]`: `[d, n, T / n]`.
    pub fn group_rows(&mut self, x: TensorId, n: usize) -> TensorId {
        let [d, n_rows, ..] = self.g.tensor(x).ne;
        let dense = self.dense(x);
        let y = self.g.reshape(dense, [d, n, n_rows.checked_div(n).unwrap_or(0), 1]);
        self.ok(y, x)
    }

    /// Returns the transpose of a weight `[n, m]`: `[m, n]`.
    pub fn transposed(&mut self, w: Vector) -> TensorId {
        let w = self.leaf(w.0);
        let y = self.g.permute(w, [1, 0, 2, 3]);
        let y = self.ok(y, w);
        self.dense(y)
    }
}
