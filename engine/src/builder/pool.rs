//! Embedding outputs: hidden states before the final projection, pooling per sequence, and classifier heads.

use kernels::GgmlType;

use crate::graph::{Op, TensorId};

use super::error::BuildError;
use super::{BuildGraph, Builder, GraphOutput, GraphPart, HiddenRows, Results};

/// Outputs of a complete graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Built {
    /// Requested result.
    pub result: TensorId,
    /// Hidden states, if requested.
    pub hidden: Option<TensorId>,
}

impl Builder<'_> {
    /// Builds the main graph or the MTP graph of an architecture, ending in the output selected by the
    /// parameters, and its evaluation order.
    pub fn whole(&mut self, results: Results, graph: &dyn BuildGraph) -> Built {
        let built = self.whole_outputs(results, graph);
        self.drop_unread_encoded();
        built
    }

    fn whole_outputs(&mut self, results: Results, graph: &dyn BuildGraph) -> Built {
        let result = match self.params.part {
            GraphPart::Mtp => self.mtp(graph),
            _ => graph.build(self),
        };
        match self.params.hidden {
            HiddenRows::None => Built {
                result: self.requested(results, graph, result),
                hidden: None,
            },
            HiddenRows::All => {
                let hidden = self.hidden_states(results, result);
                self.name(result, "result");
                let result = self.select_output_rows_keeping(result, Some(hidden));
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

    /// Returns the MTP logits. If no MTP layer is loaded, records an error and returns the logits of the main
    /// graph.
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

    /// Derives the output selected by the parameters from the main output.
    fn requested(&mut self, results: Results, graph: &dyn BuildGraph, result: TensorId) -> TensorId {
        match self.params.output {
            GraphOutput::Result if results.embeddings => {
                let hidden = self.hidden_states(results, result);
                self.output(hidden)
            }
            GraphOutput::Result => self.output(result),
            GraphOutput::Embedding { n_means, rank } => {
                let hidden = self.hidden_states(results, result);
                let pooled = match n_means {
                    0 => self.select_output_rows(hidden),
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

    /// Returns the classifier scores `[n_labels, S]`; records an error if the file lacks classifier tensors.
    fn scores(&mut self, graph: &dyn BuildGraph, pooled: TensorId) -> TensorId {
        let sound = !self.failed();
        let scores = graph.rank(self, pooled);
        if sound && scores.is_none_or(|_| self.lacks_tensor()) {
            self.fail_instead(BuildError::NoClassifier);
        }
        scores.unwrap_or(pooled)
    }

    /// Returns the operand of the final projection, `[n_embd, T]`, found by following elementwise ops back
    /// from the logits. Returns the result itself if the graph does not end in a projection.
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
                    // Parts of a matrix split by rows over several devices.
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

    /// Computes the mean row of each of `n` sequences, `[n_embd, n]`. It is a matmul with a matrix of 1 / length for
    /// each token of a sequence.
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
