//! Embeddings from a graph: the hidden states before the last projection, pooled to one row per sequence, and classifier heads.

use kernels::GgmlType;

use crate::graph::{Op, TensorId};

use super::error::BuildError;
use super::{BuildGraph, Builder, GraphPart, Results};

/// How token embeddings become one embedding per sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Pooling {
    /// No pooling: one row per token.
    None,
    /// Their mean.
    Mean,
    /// The first token's (`[CLS]`).
    Cls,
    /// The last token's, the only one that sees the whole text in a causal model.
    Last,
    /// The scores of a classifier head, such as a reranker's (`rank`).
    Rank,
}

impl Pooling {
    /// All kinds with their names; the index is `pooling_type` in files.
    pub const ALL: [(&'static str, Pooling); 5] = [
        ("none", Pooling::None),
        ("mean", Pooling::Mean),
        ("cls", Pooling::Cls),
        ("last", Pooling::Last),
        ("rank", Pooling::Rank),
    ];

    /// The kind with this `pooling_type`.
    pub fn from_code(code: u64) -> Option<Pooling> {
        let index = usize::try_from(code).ok()?;
        Self::ALL.get(index).map(|&(_, pooling)| pooling)
    }

    /// The name, as commands take it.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }
}

/// Which result a graph computes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum GraphOutput {
    /// The architecture's own result: logits, or an embedding of each token.
    #[default]
    Result,
    /// Embeddings of tokens or sequences.
    Embedding {
        /// Sequences to average over; 0 keeps the wanted rows as they are.
        n_means: usize,
        /// The classifier's scores instead.
        rank: bool,
    },
}

/// Which hidden rows a graph gives beside its result: operands of its last projection, `[n_embd, n]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HiddenRows {
    /// None.
    #[default]
    None,
    /// Those of all tokens.
    All,
    /// Those of tokens whose output is wanted.
    Wanted,
}

/// What a whole graph ends in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Built {
    /// The result that was asked for.
    pub result: TensorId,
    /// The hidden rows, if any were asked for.
    pub hidden: Option<TensorId>,
}

impl Builder<'_> {
    /// Builds an architecture's graph, or that of its layer of multi-token prediction, up to the result that the parameters ask for, and its
    /// evaluation order.
    pub fn whole(&mut self, results: Results, graph: &dyn BuildGraph) -> Built {
        let result = match self.params.part {
            GraphPart::Mtp => self.mtp(graph),
            _ => graph.build(self),
        };
        match self.params.hidden {
            HiddenRows::None => Built {
                result: self.asked(results, graph, result),
                hidden: None,
            },
            HiddenRows::All => {
                let hidden = self.hidden_states(results, result);
                self.name(result, "result");
                let result = self.wanted_rows_beside(result, Some(hidden));
                let result = self.close(result);
                Built {
                    result,
                    hidden: Some(self.close(hidden)),
                }
            }
            HiddenRows::Wanted => {
                let result = self.output(result);
                let hidden = self.hidden_states(results, result);
                Built {
                    result,
                    hidden: Some(self.close(hidden)),
                }
            }
        }
    }

    /// The logits of the layer of multi-token prediction. Without one, after noting the error, those of the model.
    fn mtp(&mut self, graph: &dyn BuildGraph) -> TensorId {
        let logits = graph.mtp(self);
        self.layer = None;
        match logits {
            Some(logits) => logits,
            None => {
                self.fail(BuildError::NoMtp);
                graph.build(self)
            }
        }
    }

    /// What the parameters ask for, made of an architecture's own result.
    fn asked(&mut self, results: Results, graph: &dyn BuildGraph, result: TensorId) -> TensorId {
        match self.params.output {
            GraphOutput::Result if results.embeddings => {
                let hidden = self.hidden_states(results, result);
                self.output(hidden)
            }
            GraphOutput::Result => self.output(result),
            GraphOutput::Embedding { n_means, rank } => {
                let hidden = self.hidden_states(results, result);
                let pooled = match n_means {
                    0 => self.wanted_rows(hidden),
                    n => self.means(hidden, n),
                };
                self.name(pooled, "pooled");
                let embedding = if rank {
                    self.scores(graph, pooled)
                } else {
                    graph.embedding(self, pooled).unwrap_or(pooled)
                };
                self.name(embedding, "embedding");
                self.close(embedding)
            }
        }
    }

    /// The classifier's scores `[n_labels, S]`. A file without one of its tensors has none.
    fn scores(&mut self, graph: &dyn BuildGraph, pooled: TensorId) -> TensorId {
        let sound = !self.failed();
        let scores = graph.rank(self, pooled);
        if sound && scores.is_none_or(|_| self.lacks_tensor()) {
            self.fail_instead(BuildError::NoClassifier);
        }
        scores.unwrap_or(pooled)
    }

    /// The operand of the graph's last projection, `[n_embd, T]`: found from the logits back through element-wise ops on
    /// them. If the graph does not end in a projection, its result.
    fn hidden_states(&mut self, results: Results, result: TensorId) -> TensorId {
        if !results.projects {
            return result;
        }
        let mut t = self.g.tensor(result);
        loop {
            match (t.op, t.src) {
                (Op::MulMat, [Some(w), Some(x), ..]) if self.g.tensor(w).flags.weight => return x,
                (
                    Op::Scale { .. }
                    | Op::Unary(_)
                    | Op::Clamp { .. }
                    | Op::Add
                    | Op::Sub
                    | Op::Mul
                    | Op::Div
                    | Op::Cont
                    // A matrix split by rows over several devices.
                    | Op::Concat { .. },
                    [Some(x), ..],
                ) => t = self.g.tensor(x),
                _ => {
                    self.fail(BuildError::NoHidden);
                    return result;
                }
            }
        }
    }

    /// The mean over the rows of each of `n` sequences, `[n_embd, n]`: a product with each token's weight (1 / length) in its sequence.
    fn means(&mut self, x: TensorId, n: usize) -> TensorId {
        let ne = self.g.tensor(x).ne;
        let shares = self.g.input(GgmlType::F32, [ne[1], n, 1, 1], "shares");
        self.inputs.shares = Some(shares);
        let columns = self.g.permute(x, [1, 0, 2, 3]);
        let columns = self.ok(columns, x);
        let columns = self.dense(columns);
        let y = self.g.mul_mat(columns, shares);
        self.ok(y, x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_places_in_the_table() {
        for (code, (name, pooling)) in Pooling::ALL.into_iter().enumerate() {
            assert_eq!(Pooling::from_code(code as u64), Some(pooling));
            assert_eq!(pooling.name(), name);
        }
        assert_eq!(Pooling::from_code(5), None);
        assert_eq!(Pooling::from_code(u64::MAX), None);
    }
}
