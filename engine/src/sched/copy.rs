//! Selects the experts of a mixture whose weights must be copied at the start of a split.

use crate::backend::{BackendError, MemoryMap};
use crate::graph::{BufferSlice, Graph, Op, TensorId};

/// Bytes after an expert's weights that tile kernels may read. They must not contain NaN.
const EXPERT_PADDING: usize = 512;

/// The experts that a mixture's router selected, read from its ids.
#[derive(Default)]
pub(super) struct UsedExperts {
    /// Tensor of expert ids that `used` was computed from.
    ids: Option<TensorId>,
    bytes: Vec<u8>,
    used: Vec<bool>,
}

impl UsedExperts {
    /// Discards the expert ids of an earlier graph.
    pub fn clear(&mut self) {
        self.ids = None;
    }

    /// Reads `ids` (i32 `[n_used, n_tokens]`), unless they were the last ids read.
    pub fn read(
        &mut self,
        graph: &Graph,
        memory: &MemoryMap,
        ids: TensorId,
        home: BufferSlice,
        n_expert: usize,
    ) -> Result<(), BackendError> {
        if self.ids == Some(ids) && self.used.len() == n_expert {
            return Ok(());
        }
        let tensor = graph.tensor(ids);
        self.bytes.resize(tensor.nbytes(), 0);
        memory.read(home, &mut self.bytes)?;
        self.used.clear();
        self.used.resize(n_expert, false);
        for t in 0..tensor.ne[1] {
            for i in 0..tensor.ne[0] {
                let at = t * tensor.nb[1] + i * tensor.nb[0];
                let id = self.bytes[at..at + 4].try_into().map(i32::from_ne_bytes);
                // The backend reports expert ids that are out of range.
                let expert = id.ok().and_then(|id| self.used.get_mut(usize::try_from(id).ok()?));
                if let Some(used) = expert {
                    *used = true;
                }
            }
        }
        self.ids = Some(ids);
        Ok(())
    }

    /// Returns the byte ranges (offset, length) of the used experts in their tensor, with adjacent experts
    /// merged.
    ///
    /// Each range extends a little into the next expert, so that kernels which read past the end never see
    /// stale data. A range that ends with the last expert needs no padding.
    pub fn ranges(&self, expert_bytes: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        let n = self.used.len();
        let mut next = 0;
        std::iter::from_fn(move || {
            let first = next + self.used[next..].iter().position(|&u| u)?;
            let len = self.used[first..].iter().take_while(|&&u| u).count();
            next = first + len;
            let padding = if next < n { expert_bytes.min(EXPERT_PADDING) } else { 0 };
            Some((first * expert_bytes, len * expert_bytes + padding))
        })
    }
}

/// Returns the expert ids if `copy` is a mixture-of-experts weight that the first node of the split reads.
pub(super) fn expert_ids(graph: &Graph, first_node: TensorId, copy: TensorId) -> Option<TensorId> {
    let node = graph.tensor(first_node);
    if node.op == Op::MulMatId && node.src[0] == Some(copy) {
        Some(node.source(2))
    } else {
        None
    }
}
