//! Speculative decoding: sources of drafts.

use engine::context::{Context, ContextParams};
use engine::speculate::{DraftController, DraftModel, Drafter, Lookup, MAX_DRAFTS, Mtp, Speculator};

use crate::{Model, Result};

/// Maximum tokens verified per pass with several sequences. Larger matmuls round activations differently.
const MAX_VERIFIED: usize = 31;

/// Source of drafts for speculative decoding.
///
/// Drafts are guesses of the next tokens. The model verifies several drafts in one pass over its weights, so that
/// correct drafts save passes. Drafts change only the speed: every token is sampled from the logits of the model.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Drafts {
    /// Earlier occurrences of the last tokens in the context. Good for responses that repeat parts of the prompt,
    /// such as edits and summaries.
    Lookup,
    /// Like [`Drafts::Lookup`], but also searches this text for occurrences.
    Text(String),
    /// A smaller model with the same vocabulary.
    Model(Model),
    /// The multi-token prediction layers of the model, which [`ModelOptions::mtp`](crate::ModelOptions::mtp) loads.
    Mtp,
}

impl Drafts {
    /// Reserves memory for the drafts of one sequence.
    pub(crate) fn reserve(&self, params: &mut ContextParams) {
        reserve_drafts(params, 1, matches!(self, Drafts::Mtp));
    }

    /// Creates the speculative decoder of sequence 0 of a context.
    pub(crate) fn speculator(&self, context: &Context) -> Result<Speculator> {
        let lookup = |text: &str| {
            let corpus = context.model().vocab().tokenize(text, false, false);
            Box::new(Lookup::new(&corpus, context.n_ctx()))
        };
        let drafter: Box<dyn Drafter> = match self {
            Drafts::Lookup => lookup(""),
            Drafts::Text(text) => lookup(text),
            Drafts::Model(model) => Box::new(DraftModel::new(model.engine().clone(), context)?),
            Drafts::Mtp => Box::new(Mtp::new(context)?),
        };
        Ok(Speculator::new(DraftController::new(MAX_DRAFTS)).with(0, drafter))
    }
}

/// Reserves the rollback states and outputs for the drafts of `n` sequences. `mtp` enables the hidden states, from
/// which multi-token prediction computes drafts.
pub fn reserve_drafts(params: &mut ContextParams, n: usize, mtp: bool) {
    params.n_rollback = params.n_rollback.max(MAX_DRAFTS);
    let n_outputs = if n == 1 { MAX_DRAFTS + 1 } else { MAX_VERIFIED };
    params.n_outputs_max = params.n_outputs_max.max(n_outputs);
    params.hidden = mtp;
}
