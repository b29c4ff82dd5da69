//! What a test takes at least: bytes to be read and numbers to be multiplied. Divided by its time, they compare with the machine's limits.

use engine::context::Sizes;
use engine::model::{Consumer, Model, TableRow};

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
        let base = model.base();
        let n_used = (0..base.n_layer()).map(|il| base.n_expert_used(il)).max().unwrap_or(0);
        // The share of experts that a token goes through, and that at least one of the sequences goes through.
        let used = n_used as f64 / base.n_expert().max(1) as f64;
        let read = 1.0 - (1.0 - used).powi(i32::try_from(test.n_parallel).unwrap_or(i32::MAX));
        let (mut bytes, mut each_token, mut each_output) = (0.0, 0.0, 0.0);
        for row in model.tensors() {
            let n = row.ne.iter().product::<usize>() as f64;
            match row.consumer {
                Consumer::GetRows => {}
                Consumer::Elementwise => bytes += row.bytes() as f64,
                Consumer::MulMat => {
                    bytes += row.file_bytes() as f64;
                    *(if is_output(row) {
                        &mut each_output
                    } else {
                        &mut each_token
                    }) += n;
                }
                Consumer::MulMatId => {
                    bytes += row.file_bytes() as f64 * read;
                    each_token += n * used;
                }
            }
        }
        let n_outputs = test.n_parallel * test.n_gen.max(1);
        // The cache holds half of what is generated on average.
        let n_held = (test.n_depth as f64 + test.n_gen as f64 / 2.0) * test.n_parallel as f64;
        let cache = sizes.kv as f64 * (n_held / n_ctx.max(1) as f64).min(1.0) + sizes.states as f64;
        Work {
            bytes: (test.n_gen > 0).then_some((bytes + cache) * test.n_gen as f64),
            multiply_adds: each_token * test.n_tokens() as f64 + each_output * n_outputs as f64,
        }
    }
}

/// The logits are its product: computed for wanted tokens only.
fn is_output(row: &TableRow) -> bool {
    row.layer.is_none() && ["output.weight", "token_embd.weight"].contains(&row.name.as_str())
}
