//! What a test takes at least: bytes to be read and numbers to be multiplied. Divided by its time, they compare with the machine's limits.

use engine::context::Sizes;
use engine::model::{Base, Consumer, Model, TableRow};

use super::case::Test;

/// Work of one repetition.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Bytes of weights, keys, values and states that are read, each once for a step of all sequences. `None` for prompts: they read weights
    /// once for many tokens.
    pub bytes: Option<f64>,
    /// Multiply-adds of the products with weights; those of attention come on top.
    pub multiply_adds: f64,
}

impl Work {
    /// The work of a test with a context of these sizes and so many cells.
    pub fn of(model: &Model, test: &Test, sizes: Sizes, n_ctx: usize) -> Work {
        let rows = model.tensors().iter().map(|row| (row, row.file_bytes()));
        let weights = Weights::of(model.base(), rows, test.n_parallel);
        let n_outputs = test.n_parallel * test.n_gen.max(1);
        // The cache holds half of what is generated on average.
        let n_held = (test.n_depth as f64 + test.n_gen as f64 / 2.0) * test.n_parallel as f64;
        let cache = sizes.kv as f64 * (n_held / n_ctx.max(1) as f64).min(1.0) + sizes.states as f64;
        Work {
            bytes: (test.n_gen > 0).then_some((weights.bytes + cache) * test.n_gen as f64),
            multiply_adds: weights.each_token * test.n_tokens() as f64 + weights.each_output * n_outputs as f64,
        }
    }
}

/// What a step of single tokens of some sequences takes of the weights.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Weights {
    /// Bytes that are read, once for all sequences.
    pub bytes: f64,
    /// Multiply-adds for each token.
    pub each_token: f64,
    /// Those for each token of which logits are wanted.
    pub each_output: f64,
}

impl Weights {
    /// Of a model with these tensors, of which those of products take so many bytes.
    pub fn of<'a>(base: &Base, rows: impl Iterator<Item = (&'a TableRow, usize)>, n_sequences: usize) -> Weights {
        let n_used = (0..base.n_layer()).map(|il| base.n_expert_used(il)).max().unwrap_or(0);
        // The share of experts that a token goes through, and that at least one of the sequences goes through.
        let used = n_used as f64 / base.n_expert().max(1) as f64;
        let read = 1.0 - (1.0 - used).powi(i32::try_from(n_sequences).unwrap_or(i32::MAX));
        let mut weights = Weights::default();
        for (row, bytes) in rows {
            let n = row.ne.iter().product::<usize>() as f64;
            match row.consumer {
                Consumer::GetRows => {}
                Consumer::Elementwise => weights.bytes += row.bytes() as f64,
                Consumer::MulMat => {
                    weights.bytes += bytes as f64;
                    *(if is_output(row) {
                        &mut weights.each_output
                    } else {
                        &mut weights.each_token
                    }) += n;
                }
                Consumer::MulMatId => {
                    weights.bytes += bytes as f64 * read;
                    weights.each_token += n * used;
                }
            }
        }
        weights
    }
}

/// The logits are its product: computed for wanted tokens only.
fn is_output(row: &TableRow) -> bool {
    row.layer.is_none() && ["output.weight", "token_embd.weight"].contains(&row.name.as_str())
}
