//! Benchmark test: a context of the required size, and repetitions that start from the same state.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use engine::backend::Profile;
use engine::builder::Pooling;
use engine::context::{Batch, Context, ContextParams, DecodeError, SeqSet};
use engine::model::Model;
use engine::random::SplitMix64;
use engine::sample::Token;

use crate::failure::{Failure, Outcome};

use super::samples::Repetition;
use super::system;

/// A prefill or decode test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Test {
    /// Prompt tokens per sequence; 0 for a decode test.
    pub n_prompt: usize,
    /// Generated tokens per sequence; 0 for a prefill test.
    pub n_gen: usize,
    /// Tokens already in the context of each sequence.
    pub n_depth: usize,
    /// Number of parallel sequences.
    pub n_parallel: usize,
    pub n_threads: usize,
}

impl Test {
    /// Returns the tokens computed in one repetition.
    pub fn n_tokens(&self) -> usize {
        (self.n_prompt + self.n_gen) * self.n_parallel
    }
}

/// Formats the test like llama-bench: `pp512`, `tg64@d4096`, and `tg64x8` for eight sequences.
impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut name = match self.n_gen {
            0 => format!("pp{}", self.n_prompt),
            n => format!("tg{n}"),
        };
        if self.n_parallel > 1 {
            name += &format!("x{}", self.n_parallel);
        }
        if self.n_depth > 0 {
            name += &format!("@d{}", self.n_depth);
        }
        f.pad(&name)
    }
}

/// A benchmark test with its context.
pub struct Case {
    test: Test,
    context: Context,
    /// Random tokens of one sequence: the context at the start, then the test's tokens.
    tokens: Vec<Token>,
    batch: Batch,
}

/// Maximum tokens decoded to warm up.
const WARM_UP: usize = 8;

/// Number of KV cells per page.
const PAGE: usize = 64;

impl Case {
    pub fn open(model: &Arc<Model>, test: Test, params: &ContextParams) -> Outcome<Case> {
        let n_tokens = test.n_depth + test.n_prompt + test.n_gen;
        let mut params = ContextParams {
            n_ctx: test.n_parallel * (n_tokens.next_multiple_of(PAGE) + PAGE),
            n_seq_max: test.n_parallel,
            n_threads: test.n_threads,
            n_threads_batch: test.n_threads,
            ..params.clone()
        };
        if model.bidirectional() {
            // Encoders process whole texts and return one vector each.
            params.n_batch = test.n_tokens();
            params.n_ubatch = test.n_tokens();
            params.pooling = Some(model.base().pooling.unwrap_or(Pooling::Mean));
        }
        let mut random = SplitMix64(1);
        let n_vocab = model.base().n_vocab().max(1);
        Ok(Case {
            test,
            context: Context::new(model.clone(), &params)?,
            tokens: (0..n_tokens).map(|_| random.below(n_vocab) as Token).collect(),
            batch: Batch::new(),
        })
    }

    pub fn test(&self) -> Test {
        self.test
    }

    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Sets a flag that interrupts repetitions.
    pub fn set_cancel(&mut self, flag: Arc<AtomicBool>) {
        self.context.set_cancel(Some(flag));
    }

    /// Builds the graphs and touches the memory that repetitions use.
    pub fn warm_up(&mut self) -> Outcome {
        self.go_back()?;
        match self.test.n_gen {
            0 => self.prompt(self.test.n_depth, self.test.n_prompt),
            n => self.generate(n.min(WARM_UP)),
        }
    }

    /// Runs the test once. Time and profile include neither resetting the context nor sampling and
    /// detokenization.
    pub fn run(&mut self) -> Outcome<Repetition> {
        self.go_back()?;
        self.context.params().profile.iter().for_each(Profile::clear);
        let (energy, start) = (system::Energy::read(), Instant::now());
        match self.test.n_gen {
            0 => self.prompt(self.test.n_depth, self.test.n_prompt)?,
            n => self.generate(n)?,
        }
        let seconds = start.elapsed().as_secs_f64();
        Ok(Repetition {
            seconds,
            joules: energy.and_then(|before| before.joules_since()),
        })
    }

    /// Truncates every sequence to the tokens before the test.
    fn go_back(&mut self) -> Outcome {
        let depth = self.test.n_depth;
        let is_back = (0..self.test.n_parallel).all(|seq| {
            let n_past = self.context.n_past(seq);
            n_past == depth || n_past > depth && depth > 0 && self.context.seq_rm(seq, depth..).is_ok()
        });
        // Sliding windows and recurrent states may not support the cut.
        if !is_back {
            self.context.clear();
            self.prompt(0, depth)?;
        }
        Ok(())
    }

    /// Processes `n` tokens of each sequence from position `pos`. Outputs are the last token of each, or all
    /// tokens with pooling.
    fn prompt(&mut self, pos: usize, n: usize) -> Outcome {
        self.batch.clear();
        let pools = self.context.params().pooling.is_some();
        for seq in 0..self.test.n_parallel {
            for i in 0..n {
                let token = self.tokens[pos + i];
                self.batch.push(token, pos + i, SeqSet::one(seq), pools || i + 1 == n);
                if self.batch.len() == self.context.params().n_batch {
                    self.decode()?;
                }
            }
        }
        self.decode()
    }

    /// Decodes `n` tokens of each sequence, one at a time.
    fn generate(&mut self, n: usize) -> Outcome {
        let depth = self.test.n_depth;
        for pos in depth..depth + n {
            for seq in 0..self.test.n_parallel {
                self.batch.push(self.tokens[pos], pos, SeqSet::one(seq), true);
            }
            self.decode()?;
        }
        Ok(())
    }

    fn decode(&mut self) -> Outcome {
        if self.batch.is_empty() {
            return Ok(());
        }
        let decoded = self.context.decode(&self.batch);
        self.batch.clear();
        match decoded {
            Ok(()) => match self.context.rejected().first() {
                None => Ok(()),
                Some(rejected) => Err(Failure::new(&rejected.error)),
            },
            Err(DecodeError::Cancelled) => Err(Failure::Interrupted),
            Err(e) => Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_names_match_llama_bench() {
        let test = Test {
            n_gen: 64,
            n_parallel: 1,
            ..Test::default()
        };
        assert_eq!(test.to_string(), "tg64");
        let many = Test {
            n_parallel: 8,
            n_depth: 4096,
            ..test
        };
        assert_eq!((many.to_string().as_str(), many.n_tokens()), ("tg64x8@d4096", 512));
        let prompt = Test {
            n_prompt: 512,
            n_gen: 0,
            ..test
        };
        assert_eq!(prompt.to_string(), "pp512");
    }
}
