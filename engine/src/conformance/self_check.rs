//! Self-checks of a model without recorded logits: results must not depend on how they are computed, and
//! tokens must not attend to hidden tokens.
//!
//! Self-checks cannot detect deviations from the published model; a wrong activation function, for example,
//! passes all of them.

use std::sync::Arc;

use crate::backend::device;
use crate::context::{Batch, Context, ContextParams, SeqSet};
use crate::gguf::logits::Logits;
use crate::model::{DeviceLayers, LoadParams, Model};
use crate::vocab::Token;

use super::{CheckError, CheckParams};

/// Number of tokens to decode.
const N_TOKENS: usize = 40;

/// Maximum model size in bytes for the slow reference device.
const MAX_REFERENCE_BYTES: usize = 256 << 20;

/// Result of one self-check.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// Expected property.
    pub claim: &'static str,
    /// Outcome of the check.
    pub outcome: Outcome,
}

/// Result of checking a property.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The property holds.
    Holds,
    /// Logits agree up to this normalized mean squared error.
    Agrees(f64),
    /// Logits differ by this normalized mean squared error, which exceeds the limit.
    Differs(f64),
    /// The property does not hold, for this reason.
    Fails(String),
    /// The check does not apply to this model, for this reason.
    NotApplicable(&'static str),
}

impl Finding {
    /// Returns false if the property does not hold.
    pub fn passes(&self) -> bool {
        !matches!(self.outcome, Outcome::Differs(_) | Outcome::Fails(_))
    }
}

/// Loads the model with `load` and checks its logits for a few tokens. `limit` is the maximum normalized mean
/// squared error between two ways of computing them.
pub fn self_check(
    load: &dyn Fn(&LoadParams) -> Result<Model, CheckError>,
    params: &CheckParams,
    limit: f64,
) -> Result<Vec<Finding>, CheckError> {
    let model = Arc::new(load(&params.load)?);
    let n_vocab = model.base().n_vocab();
    // These token ids differ even for small vocabularies.
    let tokens: Vec<Token> = (0..N_TOKENS).map(|i| ((i * 37 + 11) % n_vocab) as Token).collect();
    let run = Run {
        model: &model,
        params: &params.context,
        tokens: &tokens,
    };
    let whole = run.logits(N_TOKENS)?;
    let compare = |claim, found: &[f32]| Finding {
        claim,
        outcome: compared(&whole, found, limit),
    };
    let not_applicable = |claim, why| Finding {
        claim,
        outcome: Outcome::NotApplicable(why),
    };
    let mut findings = vec![Finding {
        claim: "all logits are finite",
        outcome: finite(&whole, whole.len() / N_TOKENS),
    }];
    const PIECES: [(usize, &str); 2] = [
        (17, "chunks of 17 tokens give the same logits"),
        (1, "single tokens give the same logits"),
    ];
    for (n, claim) in PIECES {
        findings.push(if model.bidirectional() {
            not_applicable(claim, "bidirectional attention requires whole sequences")
        } else {
            compare(claim, &run.logits(n)?)
        });
    }
    findings.push(compare(
        "a second sequence in the batch has no effect",
        &run.logits_in_batch()?,
    ));
    let claim = "the reference device gives the same logits";
    findings.push(if model.n_bytes() > MAX_REFERENCE_BYTES {
        not_applicable(claim, "the model is too large")
    } else {
        let model = Arc::new(load(&on_reference(&params.load, model.base().n_layer()))?);
        compare(claim, &Run { model: &model, ..run }.logits(N_TOKENS)?)
    });
    findings.push(sight(&run, &whole, limit)?);
    Ok(findings)
}

/// A model and the tokens to check it with.
#[derive(Clone, Copy)]
struct Run<'a> {
    model: &'a Arc<Model>,
    params: &'a ContextParams,
    tokens: &'a [Token],
}

impl Run<'_> {
    /// Returns the logits of all tokens, decoded in chunks of `n`: `[n_tokens, n_vocab]`.
    fn logits(&self, n: usize) -> Result<Vec<f32>, CheckError> {
        self.logits_of(self.tokens, n)
    }

    /// Returns the logits of other tokens. An encoder still gets the tokens of the run, so only the decoder's
    /// input changes.
    fn logits_of(&self, tokens: &[Token], n: usize) -> Result<Vec<f32>, CheckError> {
        let mut ctx = self.context()?;
        self.encode(&mut ctx, &[self.tokens])?;
        let mut all = Vec::new();
        for (i, piece) in tokens.chunks(n).enumerate() {
            let mut batch = Batch::new();
            for (j, &token) in piece.iter().enumerate() {
                batch.push(token, i * n + j, SeqSet::one(0), true);
            }
            ctx.decode(&batch)?;
            let rows = (0..piece.len()).filter_map(|j| ctx.logits(j));
            all.extend(rows.flatten());
        }
        Ok(all)
    }

    /// Returns the logits of all tokens, interleaved in the batch with a second sequence: the same tokens
    /// reversed.
    fn logits_in_batch(&self) -> Result<Vec<f32>, CheckError> {
        let backwards: Vec<Token> = self.tokens.iter().rev().copied().collect();
        let mut ctx = self.context()?;
        self.encode(&mut ctx, &[self.tokens, &backwards])?;
        let mut batch = Batch::new();
        for (i, (&token, &other)) in self.tokens.iter().zip(&backwards).enumerate() {
            batch.push(token, i, SeqSet::one(0), true);
            batch.push(other, i, SeqSet::one(1), true);
        }
        ctx.decode(&batch)?;
        let rows = (0..self.tokens.len()).filter_map(|i| ctx.logits(2 * i));
        Ok(rows.flatten().copied().collect())
    }

    /// Encodes the sequences if the model has an encoder.
    fn encode(&self, ctx: &mut Context, sequences: &[&[Token]]) -> Result<(), CheckError> {
        if !self.model.arch().encoder {
            return Ok(());
        }
        let mut batch = Batch::new();
        for (seq, tokens) in sequences.iter().enumerate() {
            for (i, &token) in tokens.iter().enumerate() {
                batch.push(token, i, SeqSet::one(seq), false);
            }
        }
        Ok(ctx.encode(&batch)?)
    }

    /// Creates a context for two sequences.
    fn context(&self) -> Result<Context, CheckError> {
        let n = 2 * self.tokens.len();
        let params = ContextParams {
            n_ctx: n,
            n_batch: n,
            n_ubatch: n,
            n_outputs_max: n,
            n_seq_max: 2,
            ..self.params.clone()
        };
        Ok(Context::new(self.model.clone(), &params)?)
    }
}

/// Returns load parameters that place the whole model on the reference device, including the output layer.
fn on_reference(load: &LoadParams, n_layer: usize) -> LoadParams {
    let mut load = load.clone();
    load.placement.devices = device("reference").into_iter().collect();
    load.placement.n_layers = DeviceLayers::Count(n_layer + 1);
    load
}

fn finite(logits: &[f32], n_vocab: usize) -> Outcome {
    match logits.iter().position(|x| !x.is_finite()) {
        None => Outcome::Holds,
        Some(i) => Outcome::Fails(format!(
            "logit {} of token {} is {}",
            i % n_vocab.max(1),
            i / n_vocab.max(1),
            logits[i]
        )),
    }
}

/// Checks that changing the last token does not change earlier logits, or with bidirectional attention, that
/// it does.
fn sight(run: &Run<'_>, whole: &[f32], limit: f64) -> Result<Finding, CheckError> {
    let mut tokens = run.tokens.to_vec();
    let n_vocab = run.model.base().n_vocab();
    let last = tokens.len() - 1;
    tokens[last] = (tokens[last] + 1) % n_vocab as Token;
    let changed = run.logits_of(&tokens, tokens.len())?;
    let before = whole.len() / tokens.len() * last;
    let outcome = compared(&whole[..before], &changed[..before.min(changed.len())], limit);
    Ok(if run.model.bidirectional() {
        Finding {
            claim: "a later token changes earlier results",
            outcome: match outcome {
                Outcome::Agrees(_) => Outcome::Fails("no change: tokens do not attend to later tokens".to_owned()),
                _ => Outcome::Holds,
            },
        }
    } else {
        Finding {
            claim: "a later token does not change earlier logits",
            outcome,
        }
    })
}

fn compared(truth: &[f32], found: &[f32], limit: f64) -> Outcome {
    // Logits of masked tokens are equally low in both and would dominate the error.
    let said = |values: &[f32]| -> Vec<f32> { values.iter().copied().filter(|&x| x != -f32::MAX).collect() };
    let (truth, found) = (said(truth), said(found));
    if truth.len() != found.len() {
        return Outcome::Fails(format!("expected {} logits, found {}", truth.len(), found.len()));
    }
    let n = truth.len();
    let nmse = Logits::new(vec![0], n, truth).map_or(f64::INFINITY, |truth| truth.nmse(&found));
    if nmse <= limit {
        Outcome::Agrees(nmse)
    } else {
        Outcome::Differs(nmse)
    }
}
