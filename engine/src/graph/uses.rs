//! Who reads each tensor of a graph: what a backend has to know before it leaves a result out of memory.

use super::{Graph, TensorId};

/// Number of readers by tensor. Keeps its memory from graph to graph.
#[derive(Clone, Default, Debug)]
pub struct Uses {
    n_readers: Vec<u32>,
}

impl Uses {
    /// Counts the readers in a graph; `copied` are tensors that are copied elsewhere while the graph is computed.
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

    /// How many read the tensor's result: each operand that it is (of a view too) counts, each copy to other memory, and the
    /// caller, if it is an output. A result whose readers a backend all computes in one go need not be stored.
    pub fn n_readers(&self, id: TensorId) -> usize {
        self.n_readers[id.index()] as usize
    }
}

#[cfg(test)]
mod tests {
    use kernels::GgmlType;

    use super::*;

    #[test]
    fn operands_views_copies_and_the_caller_are_readers() {
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
