//! Minimum work of a test: bytes read and multiply-adds. Divided by the measured time, they compare with the
//! machine's peak rates.

use engine::context::Sizes;
use engine::model::{Base, Consumer, Model, TableRow};

use super::case::Test;

/// Work of one repetition of a benchmark test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Bytes of weights, KV cache, and states read, once per step of all sequences. `None` for prefill, which reads
    /// weights once for many tokens.
    pub bytes: Option<f64>,
    /// Multiply-adds of matmuls with weights, excluding attention.
    pub multiply_adds: f64,
}

impl Work {
    /// Computes the work of a test. `sizes` and `n_ctx` describe its context.
    pub fn of(model: &Model, test: &Test, sizes: Sizes, n_ctx: usize) -> Work {
        let rows = model.tensors().iter().map(|row| (row, row.file_bytes()));
        let weights = Weights::of(model.base(), rows, test.n_parallel);
        let n_outputs = test.n_parallel * test.n_gen.max(1);
        // On average, the KV cache contains half of the generated tokens.
        let n_held = (test.n_depth as f64 + test.n_gen as f64 / 2.0) * test.n_parallel as f64;
        let cache = sizes.kv as f64 * (n_held / n_ctx.max(1) as f64).min(1.0) + sizes.states as f64;
        Work {
            bytes: (test.n_gen > 0).then_some((weights.bytes + cache) * test.n_gen as f64),
            multiply_adds: weights.each_token * test.n_tokens() as f64 + weights.each_output * n_outputs as f64,
        }
    }
}

/// Use of the weights by one decode step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Weights {
    /// Bytes read per step, once for all sequences.
    pub bytes: f64,
    /// Number of multiply-adds per token.
    pub each_token: f64,
    /// Number of multiply-adds per output token.
    pub each_output: f64,
}

impl Weights {
    /// Computes the use of the weights. `rows` yields each tensor with its size in bytes.
    pub fn of<'a>(base: &Base, rows: impl Iterator<Item = (&'a TableRow, usize)>, n_sequences: usize) -> Weights {
        let n_used = (0..base.n_layer()).map(|il| base.n_expert_used(il)).max().unwrap_or(0);
        // Fraction of experts that one token uses, and fraction that at least one of the sequences uses.
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

/// Returns true for the output projection, which is computed for output tokens only.
fn is_output(row: &TableRow) -> bool {
    row.layer.is_none() && ["output.weight", "token_embd.weight"].contains(&row.name.as_str())
}
