//! Which experts of a mixture's weights need copying, at the start of a split.

use crate::backend::{BackendError, MemoryMap};
use crate::graph::{Graph, Home, Op, TensorId};

/// Read after the used part of an expert's weights by kernels that work on whole tiles; must not hold NaN.
const EXPERT_PADDING: usize = 512;

/// The experts that a mixture's router chose, read back from its ids.
#[derive(Default)]
pub(super) struct UsedExperts {
    /// The ids that `used` was made from.
    ids: Option<TensorId>,
    bytes: Vec<u8>,
    used: Vec<bool>,
}

impl UsedExperts {
    /// Forgets what was read for an earlier graph.
    pub fn clear(&mut self) {
        self.ids = None;
    }

    /// Reads `ids` (i32 `[n_used, T]`), unless it was read last.
    pub fn read(
        &mut self,
        graph: &Graph,
        memory: &MemoryMap,
        ids: TensorId,
        home: Home,
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
                // An id out of range is the backend's to report.
                let expert = id.ok().and_then(|id| self.used.get_mut(usize::try_from(id).ok()?));
                if let Some(used) = expert {
                    *used = true;
                }
            }
        }
        self.ids = Some(ids);
        Ok(())
    }

    /// Byte ranges of the used experts in their tensor, neighbours joined. Each but one that ends with the last expert
    /// reaches a little into the next, so that nothing stale stands where kernels read beyond.
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

/// The ids of the experts used, if `copy` holds a mixture's weights and the first node of its split is what reads them.
pub(super) fn expert_ids(graph: &Graph, first_node: TensorId, copy: TensorId) -> Option<TensorId> {
    let node = graph.tensor(first_node);
    (node.op == Op::MulMatId && node.src[0] == Some(copy)).then(|| node.source(2))
}
