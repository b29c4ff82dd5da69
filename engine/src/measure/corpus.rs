//! A text in chunks. The second half of each chunk is scored, so that every scored token has context.

use crate::context::{Batch, Context, SeqSet};
use crate::finite::check_logits;
use crate::model::Model;
use crate::vocab::{Token, Vocab};

use super::error::MeasureError;

/// Tokens of a text in chunks of equal length, as llama.cpp divides a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corpus {
    tokens: Vec<Token>,
    n_ctx: usize,
    /// First token of a chunk as the model reads it, instead of the token of the text.
    bos: Option<Token>,
}

/// A scored position of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scored {
    /// Index of the position in the batch.
    pub index: usize,
    /// Token that follows in the text.
    pub token: Token,
    /// Index of the chunk.
    pub chunk: usize,
}

/// A batch of tokens, and the outputs to score.
#[derive(Clone, Debug)]
pub struct CorpusStep {
    /// Tokens of one or more chunks.
    pub batch: Batch,
    /// Scored positions, in the order of the text.
    pub scored: Vec<Scored>,
    /// Whether the step begins with new chunks, which do not depend on earlier ones.
    pub is_first: bool,
    /// Number of chunks that are complete after the step.
    pub n_done: usize,
}

impl Corpus {
    /// Minimum number of tokens in a chunk.
    pub const MIN_CTX: usize = 4;

    /// Divides a text into chunks of `n_ctx` tokens, at most `max_chunks`. A shorter rest is dropped.
    ///
    /// # Errors
    /// Returns an error if the text is shorter than one chunk.
    pub fn new(vocab: &Vocab, text: &str, n_ctx: usize, max_chunks: Option<usize>) -> Result<Corpus, MeasureError> {
        let tokens = vocab.tokenize(text, true, false);
        let bos = if vocab.add_bos() { vocab.bos() } else { None };
        Corpus::of_tokens(tokens, n_ctx, max_chunks, bos)
    }

    /// Like [`Corpus::new`], for tokens. The model reads `bos` as the first token of each chunk.
    ///
    /// # Errors
    /// Returns an error if there are fewer tokens than in one chunk.
    pub fn of_tokens(
        mut tokens: Vec<Token>,
        n_ctx: usize,
        max_chunks: Option<usize>,
        bos: Option<Token>,
    ) -> Result<Corpus, MeasureError> {
        let n_ctx = n_ctx.max(Corpus::MIN_CTX);
        let n_chunks = (tokens.len() / n_ctx).min(max_chunks.unwrap_or(usize::MAX));
        if n_chunks == 0 {
            let n_tokens = tokens.len();
            return Err(MeasureError::ShortText { n_tokens, n_ctx });
        }
        tokens.truncate(n_chunks * n_ctx);
        Ok(Corpus { tokens, n_ctx, bos })
    }

    /// Returns the tokens of all chunks.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Returns the number of tokens of a chunk.
    pub fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    /// Returns the number of chunks.
    pub fn n_chunks(&self) -> usize {
        self.tokens.len() / self.n_ctx
    }

    /// Returns the number of scored positions of a chunk.
    pub fn n_scored(&self) -> usize {
        self.n_ctx - 1 - self.n_ctx / 2
    }

    /// Returns the number of chunks that steps of `n_batch` tokens decode at once.
    pub fn n_parallel(&self, n_batch: usize) -> usize {
        (n_batch / self.n_ctx).clamp(1, self.n_chunks())
    }

    /// Yields the steps that decode chunks starting at index `start`, each of at most `n_batch` tokens. Every token
    /// that has a successor in its chunk is scored, and all tokens have outputs, if `all` is true.
    pub fn steps(&self, n_batch: usize, start: usize, all: bool) -> impl Iterator<Item = CorpusStep> + '_ {
        let n_batch = n_batch.max(1);
        let n_seqs = self.n_parallel(n_batch);
        let first_scored = if all { 0 } else { self.n_ctx / 2 };
        let groups = (start..self.n_chunks()).step_by(n_seqs);
        groups.flat_map(move |group| {
            let chunks = group..(group + n_seqs).min(self.n_chunks());
            (0..self.n_ctx).step_by(n_batch).map(move |from| {
                let to = (from + n_batch).min(self.n_ctx);
                let mut step = CorpusStep {
                    batch: Batch::new(),
                    scored: Vec::new(),
                    is_first: from == 0,
                    n_done: if to == self.n_ctx { chunks.end } else { group },
                };
                for (seq, chunk) in chunks.clone().enumerate() {
                    self.push(&mut step, (seq, chunk), from..to, first_scored);
                }
                step
            })
        })
    }

    fn push(
        &self,
        step: &mut CorpusStep,
        (seq, chunk): (usize, usize),
        positions: std::ops::Range<usize>,
        first: usize,
    ) {
        let tokens = &self.tokens[chunk * self.n_ctx..][..self.n_ctx];
        for pos in positions {
            let token = match self.bos {
                Some(bos) if pos == 0 => bos,
                _ => tokens[pos],
            };
            let next = if pos >= first { tokens.get(pos + 1) } else { None };
            if let Some(&next) = next {
                step.scored.push(Scored {
                    index: step.batch.len(),
                    token: next,
                    chunk,
                });
            }
            // Without an output, the last layer would not compute a token.
            step.batch
                .push(token, pos, SeqSet::one(seq), next.is_some() || first == 0);
        }
    }
}

/// Checks that a model predicts the next token.
///
/// # Errors
/// Returns an error if attention is bidirectional, or an encoder reads the text.
pub fn check_model(model: &Model) -> Result<(), MeasureError> {
    let arch = model.arch();
    if model.bidirectional() || arch.encoder {
        return Err(MeasureError::NotGenerative { arch: arch.name });
    }
    Ok(())
}

/// Decodes the tokens of a step.
///
/// # Errors
/// Returns an error if any token cannot be decoded.
pub fn decode_step(context: &mut Context, step: &CorpusStep) -> Result<(), MeasureError> {
    if step.is_first {
        context.clear();
    }
    context.decode(&step.batch)?;
    match context.rejected().first() {
        Some(rejection) => Err(MeasureError::Rejected(rejection.error.to_string())),
        None => Ok(()),
    }
}

/// Returns the logits `[n_vocab]` of a scored position of the last step.
///
/// # Errors
/// Returns an error if the position has no output, or a logit is not a number.
pub fn logits_at<'a>(context: &'a Context, scored: &Scored) -> Result<&'a [f32], MeasureError> {
    let logits = context.logits(scored.index);
    let logits = logits.ok_or_else(|| MeasureError::Rejected("a position has no output".to_owned()))?;
    let chunk = scored.chunk + 1;
    check_logits(logits).map_err(|error| MeasureError::NotFinite { chunk, error })?;
    Ok(logits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_cover_each_chunk_with_any_batch_size() {
        let corpus = Corpus::of_tokens((0..43).collect(), 10, None, Some(99)).unwrap();
        assert_eq!(
            (corpus.n_chunks(), corpus.n_scored(), corpus.tokens().len()),
            (4, 4, 40)
        );
        let scored = |n_batch: usize| -> Vec<(u32, u32, usize)> {
            let steps = corpus.steps(n_batch, 0, false);
            steps
                .flat_map(|step| {
                    assert!(step.batch.len() <= n_batch);
                    let read = step.batch.tokens().to_vec();
                    assert!(read.iter().all(|t| (t.token == 99) == (t.pos == 0)));
                    step.scored.into_iter().map(move |s| {
                        assert!(read[s.index].output);
                        (read[s.index].token, s.token, s.chunk)
                    })
                })
                .collect()
        };
        let expected: Vec<_> = (0..4usize)
            .flat_map(|chunk| (5..9).map(move |i| (10 * chunk as u32 + i, 10 * chunk as u32 + i + 1, chunk)))
            .collect();
        for n_batch in [1, 3, 10, 20, 25, 100] {
            assert_eq!(scored(n_batch), expected, "{n_batch}");
        }
        let done: Vec<_> = corpus.steps(20, 0, false).map(|step| step.n_done).collect();
        assert_eq!(done, [2, 4]);
        let all: usize = corpus.steps(7, 3, true).map(|step| step.scored.len()).sum();
        assert_eq!(all, 9);
        assert!(Corpus::of_tokens(vec![1; 9], 10, None, None).is_err());
    }
}
