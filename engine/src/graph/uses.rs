//! Reader counts of tensors, which allow backends to leave results unstored.

use super::{Graph, TensorId};

/// Number of readers per tensor. Capacity is reused between graphs.
#[derive(Clone, Default, Debug)]
pub struct Uses {
    n_readers: Vec<u32>,
}

impl Uses {
    /// Counts the readers in a graph. Tensors in `copied` have an additional reader: the copy to another
    /// memory during compute.
    pub fn count(&mut self, graph: &Graph, copied: impl IntoIterator<Item = TensorId>) {
        self.n_readers.clear();
        self.n_readers.resize(graph.len(), 0);
        for &node in graph.nodes() {
            let tensor = graph.tensor(node);
            tensor.sources().for_each(|source| self.n_readers[source.index()] += 1);
            self.n_readers[node.index()] += u32::from(tensor.flags.output);
        }
        copied.into_iter().for_each(|id| self.n_readers[id.index()] += 1);
    }

    /// Returns the number of readers: operands (including those of views), copies to other memories, and the
    /// caller for outputs. If a backend fuses all readers of a result, the result need not be stored.
    pub fn n_readers(&self, id: TensorId) -> usize {
        self.n_readers[id.index()] as usize
    }
}

#[cfg(test)]
mod tests {
    use kernels::GgmlType;

    use super::*;

    #[test]
    fn count_includes_views_copies_and_outputs() {
        let mut g = Graph::new();
        let x = g.input(GgmlType::F32, [4, 2, 1, 1], "x");
        let twice = g.add(x, x).unwrap();
        let view = g.reshape(twice, [8, 1, 1, 1]).unwrap();
        let out = g.scale(view, 2.0, 0.0).unwrap();
        let unread = g.scale(out, 2.0, 0.0).unwrap();
        g.tensor_mut(out).flags.output = true;
        g.expand(unread);
        let mut uses = Uses::default();
        for _ in 0..2 {
            uses.count(&g, [twice]);
            let n = [x, twice, view, out, unread].map(|id| uses.n_readers(id));
            assert_eq!(n, [2, 2, 1, 2, 0]);
        }
    }
}
