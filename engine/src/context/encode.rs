//! What an encoder made of sequences, for the decoder to attend to.

use crate::build::{BuildParams, EncodedInputs};
use crate::graph::{Graph, TensorId};
use crate::sched::{SchedError, Scheduler};

use super::DecodeError;
use super::batch::{Batch, BatchToken, MAX_SEQUENCES, SeqSet};
use super::decode::Context;

/// The encoder's result, and which sequences each row belongs to.
#[derive(Default)]
pub(super) struct Encoded {
    /// f32 `[n_embd, n_rows]`
    rows: Vec<f32>,
    positions: Vec<i32>,
    /// One bit per sequence.
    seqs: Vec<i64>,
}

impl Encoded {
    /// Takes memory for `n` rows, so that encoding needs none.
    pub fn reserve(&mut self, n_embd: usize, n: usize) {
        self.rows.reserve(n_embd * n);
        self.positions.reserve(n);
        self.seqs.reserve(n);
    }

    /// Rows.
    pub fn len(&self) -> usize {
        self.seqs.len()
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.positions.clear();
        self.seqs.clear();
    }

    /// True if a sequence has rows.
    pub fn has(&self, seq: usize) -> bool {
        self.seqs.iter().any(|&s| SeqSet(s as u64).contains(seq))
    }

    /// Gives `to` the rows of `from` in place of its own.
    pub fn share(&mut self, from: usize, to: usize) {
        for seqs in &mut self.seqs {
            let others = *seqs as u64 & !SeqSet::one(to).0;
            let shared = SeqSet(*seqs as u64).contains(from);
            *seqs = (others | if shared { SeqSet::one(to).0 } else { 0 }) as i64;
        }
    }

    /// Takes all rows from all sequences but one.
    pub fn keep(&mut self, seq: usize) {
        self.seqs.iter_mut().for_each(|s| *s &= SeqSet::one(seq).0 as i64);
    }

    /// Room for the rows of these tokens, in place of all others.
    fn take(&mut self, tokens: &[BatchToken], n_embd: usize) -> &mut [f32] {
        self.clear();
        self.rows.resize(n_embd * tokens.len(), 0.0);
        self.positions.extend(tokens.iter().map(|t| t.pos));
        self.seqs.extend(tokens.iter().map(|t| t.seqs.0 as i64));
        &mut self.rows
    }

    /// Fills the inputs of a graph that attends to the rows.
    pub fn set_inputs(&self, inputs: &EncodedInputs, graph: &Graph, sched: &mut Scheduler) -> Result<(), SchedError> {
        let mut set = |id: Option<TensorId>, bytes: &[u8]| id.map_or(Ok(()), |id| sched.set_input(graph, id, bytes));
        set(inputs.rows, bytemuck::cast_slice(&self.rows))?;
        set(inputs.positions, bytemuck::cast_slice(&self.positions))?;
        set(inputs.sequences, bytemuck::cast_slice(&self.seqs))
    }
}

impl Context {
    /// Runs the encoder over a batch, whole, in place of what was encoded before. Decoding then attends to the rows of a token's
    /// sequence. Positions of each sequence count from 0; which outputs are wanted does not matter. On an error nothing is encoded.
    pub fn encode(&mut self, batch: &Batch) -> Result<(), DecodeError> {
        let tokens = batch.tokens();
        self.encoded.clear();
        self.check_encode(tokens)?;
        for buffer in self.model.buffers() {
            buffer.check()?;
        }
        self.build(self.encoder_params(tokens.len()))?;
        self.sched.set_threads(self.params().n_threads_batch);
        self.set_inputs(tokens, true)?;
        self.sched.compute(&self.graph.graph)?;
        if let Some(result) = self.graph.result {
            let rows = self.encoded.take(tokens, self.model.base().n_embd());
            let read = self
                .sched
                .read_tensor(&self.graph.graph, result, 0, bytemuck::cast_slice_mut(rows));
            read.inspect_err(|_| self.encoded.clear())?;
        }
        Ok(())
    }

    /// Most tokens that can be encoded together.
    pub(super) fn n_encode_max(&self) -> usize {
        self.params().n_batch.min(self.n_ctx())
    }

    pub(super) fn encoder_params(&self, n_tokens: usize) -> BuildParams {
        BuildParams {
            encoder: true,
            causal: false,
            n_encoded: 0,
            ..self.build_params(n_tokens, n_tokens)
        }
    }

    fn check_encode(&self, tokens: &[BatchToken]) -> Result<(), DecodeError> {
        if !self.model.arch().encoder {
            return Err(DecodeError::NoEncoder {
                arch: self.model.arch().name,
            });
        }
        let max = self.n_encode_max();
        if tokens.len() > max {
            return Err(DecodeError::EncodeTooLarge {
                found: tokens.len(),
                max,
            });
        }
        self.check_tokens(tokens, [0; MAX_SEQUENCES])
    }
}
