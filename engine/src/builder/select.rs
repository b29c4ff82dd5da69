//! Sparse attention: indexer keys, and the selection of cells or position blocks by indexer scores.

use super::Builder;
use super::attention::AttentionArgs;
use super::error::{BuildError, MAX_ROUNDS};
use crate::graph::{BlockRule, Blocks, TensorId, VisibleCells, Window};

impl Builder<'_> {
    /// Selects the cells with the `n` highest indexer scores among those visible to each token: i32 `[at most
    /// n, T]`, unordered.
    ///
    /// The layer stores the key `k [d, 1, T]` of each token; queries are `q [d, h, T]` and head weights
    /// `weights [h, T]`. If fewer than `n` cells are visible, the remaining entries are cells that attention
    /// masks anyway. With `ratio`, keys represent groups of tokens, as in [`AttentionArgs::compressed`].
    pub fn index_cells(
        &mut self,
        q: TensorId,
        k: TensorId,
        weights: TensorId,
        n: usize,
        ratio: Option<usize>,
    ) -> TensorId {
        let window = ratio.map_or(Window::None, |n| Window::Compressed(n.max(1)));
        let (scores, _) = self.index_scores(q, k, Some(weights), window);
        let n_kv = self.g.tensor(scores).ne[0];
        let cells = self.g.top_k(scores, n.min(n_kv));
        self.chosen(cells, q)
    }

    /// Selects, per head, the cells of the `n` blocks of `size` positions with the largest dot product of query and
    /// key. `q` is `[d, h, T]`, and `k` is `[d, 1, T]`. Returns i32 `[at most n * size, h, T]`. The layer stores the
    /// keys. The last `local` blocks up to the token's own are always included.
    pub fn index_blocks(&mut self, q: TensorId, k: TensorId, n: usize, size: usize, local: usize) -> TensorId {
        let rule = BlockRule::Best { local };
        self.index_by(q, k, None, Blocks { size, k: n, rule })
    }

    /// Selects the cells of the `n / size` complete blocks of `size` positions with the highest scores: i32
    /// `[at most n + size - 1, T]`. A block is scored like a cell in [`Builder::index_cells`], with the key
    /// of its last token. `tail` also selects the current incomplete block.
    pub fn index_pools(
        &mut self,
        q: TensorId,
        k: TensorId,
        weights: TensorId,
        n: usize,
        size: usize,
        tail: bool,
    ) -> TensorId {
        let (rule, n) = (BlockRule::Whole { tail }, n.checked_div(size).unwrap_or(0));
        self.index_by(q, k, Some(weights), Blocks { size, k: n, rule })
    }

    /// Returns the selection of the last indexer, for layers that share it.
    pub fn indexed_cells(&mut self) -> TensorId {
        self.selection.unwrap_or_else(|| {
            self.fail_no_selection();
            self.positions()
        })
    }

    /// Returns `x [c, T]` of each token and its `n - 1` predecessors in the sequence, earliest first: `[c, n,
    /// T]`. The layer stores `x`. For missing positions, the values are copied from an arbitrary token.
    pub fn last_tokens(&mut self, x: TensorId, n: usize) -> TensorId {
        // The loop adds a graph node for each position.
        if n > MAX_ROUNDS {
            self.fail(BuildError::TooLong { rounds: n });
            return x;
        }
        let rows = self.heads(x, 1);
        let (rows, visible) = self.remember_keys(rows, Window::None);
        let ids = self.g.recent_cells(n, visible);
        let ids = self.ok(ids, x);
        let [c, n_tokens, ..] = self.g.tensor(x).ne;
        let n_kv = self.g.tensor(rows).ne[2];
        let table = self.g.reshape(rows, [c, n_kv, 1, 1]);
        let table = self.ok(table, x);
        let list = self.g.reshape(ids, [n * n_tokens, 1, 1, 1]);
        let list = self.ok(list, x);
        let found = self.g.get_rows(table, list);
        let found = self.ok(found, x);
        let found = self.g.reshape(found, [c, n, n_tokens, 1]);
        self.ok(found, x)
    }

    /// Applies softmax over the heads of `x [d, n, T]`.
    pub fn softmax_heads(&mut self, x: TensorId) -> TensorId {
        const SWAPPED: [usize; 4] = [1, 0, 2, 3];
        let by_head = self.g.permute(x, SWAPPED);
        let by_head = self.ok(by_head, x);
        let by_head = self.dense(by_head);
        let y = self.softmax(by_head);
        let y = self.g.permute(y, SWAPPED);
        let y = self.ok(y, x);
        self.dense(y)
    }

    fn index_by(&mut self, q: TensorId, k: TensorId, weights: Option<TensorId>, blocks: Blocks) -> TensorId {
        let (scores, visible) = self.index_scores(q, k, weights, Window::None);
        let cells = self.g.select_blocks(blocks, scores, visible);
        self.chosen(cells, q)
    }

    fn chosen(&mut self, cells: Result<TensorId, crate::graph::ShapeError>, instead: TensorId) -> TensorId {
        let cells = self.ok(cells, instead);
        self.selection = Some(cells);
        cells
    }

    /// Stores the keys and scores all cached keys. Returns the scores and the operands of visible cells.
    fn index_scores(
        &mut self,
        q: TensorId,
        k: TensorId,
        weights: Option<TensorId>,
        window: Window,
    ) -> (TensorId, VisibleCells<TensorId>) {
        let (keys, visible) = self.remember_keys(k, window);
        let scores = self.g.index_scores(q, keys, visible, weights);
        let scores = self.ok(scores, q);
        self.name(scores, "index_scores");
        (scores, visible)
    }

    /// Stores keys without values. Returns all cached keys and the operands of visible cells.
    fn remember_keys(&mut self, k: TensorId, window: Window) -> (TensorId, VisibleCells<TensorId>) {
        let args = AttentionArgs {
            v_in_k: Some(0),
            window,
            ..AttentionArgs::default()
        };
        let (keys, _, cells) = self.remember(k, None, &args);
        (keys, self.visible(cells))
    }
}
