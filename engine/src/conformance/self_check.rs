//! What can be said of a model without a recording: its results do not depend on how they are computed, and no token sees what it must not.
//!
//! None of this shows that the graph is the one that was published: a wrong activation passes all of it.

use std::sync::Arc;

use crate::backend::device;
use crate::context::{Batch, Context, ContextParams, SeqSet};
use crate::gguf::logits::Logits;
use crate::model::{DeviceLayers, LoadParams, Model};
use crate::vocab::Token;

use super::{CheckError, CheckParams};

/// Tokens that are decoded.
const N_TOKENS: usize = 40;

/// Models of more bytes are not computed on the reference device, which takes its time.
const MAX_REFERENCE_BYTES: usize = 256 << 20;

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// What should hold.
    pub claim: &'static str,
    /// Whether it does.
    pub outcome: Outcome,
}

/// Whether a claim holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It does.
    Holds,
    /// Logits are the same but for this normalized mean squared error.
    Agrees(f64),
    /// Logits differ by this normalized mean squared error, which is too large.
    Differs(f64),
    /// It does not hold, and how.
    Fails(String),
    /// It says nothing about such a model, and why.
    NotApplicable(&'static str),
}

impl Finding {
    /// False if the claim does not hold.
    pub fn passes(&self) -> bool {
        !matches!(self.outcome, Outcome::Differs(_) | Outcome::Fails(_))
    }
}

/// Loads the model with `load` and looks at its logits for some tokens. Two ways of computing them agree up to `limit`, a normalized mean
/// squared error.
pub fn self_check(
    load: &dyn Fn(&LoadParams) -> Result<Model, CheckError>,
    params: &CheckParams,
    limit: f64,
) -> Result<Vec<Finding>, CheckError> {
    let model = Arc::new(load(&params.load)?);
    let n_vocab = model.base().n_vocab();
    // Of a small vocabulary, too, different ones.
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
        claim: "no logit is infinite or not a number",
        outcome: finite(&whole, whole.len() / N_TOKENS),
    }];
    const PIECES: [(usize, &str); 2] = [
        (17, "pieces of 17 tokens give the logits of the whole"),
        (1, "single tokens give the logits of the whole"),
    ];
    for (n, claim) in PIECES {
        findings.push(match model.bidirectional() {
            true => not_applicable(claim, "every token sees all of its sequence: it is computed whole"),
            false => compare(claim, &run.logits(n)?),
        });
    }
    findings.push(compare(
        "a second sequence in the batch changes nothing",
        &run.logits_beside_another()?,
    ));
    let claim = "the reference device gives the same logits";
    findings.push(if model.n_bytes() > MAX_REFERENCE_BYTES {
        not_applicable(claim, "the model is too large for it")
    } else {
        let model = Arc::new(load(&on_reference(&params.load, model.base().n_layer()))?);
        compare(claim, &Run { model: &model, ..run }.logits(N_TOKENS)?)
    });
    findings.push(sight(&run, &whole, limit)?);
    Ok(findings)
}

/// A model and the tokens that it is tried with.
#[derive(Clone, Copy)]
struct Run<'a> {
    model: &'a Arc<Model>,
    params: &'a ContextParams,
    tokens: &'a [Token],
}

impl Run<'_> {
    /// Logits of all tokens, decoded in pieces of `n`: `[n_tokens, n_vocab]`.
    fn logits(&self, n: usize) -> Result<Vec<f32>, CheckError> {
        self.logits_of(self.tokens, n)
    }

    /// Logits of other tokens. An encoder sees those of the run all the same, so that only the decoder is given others.
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

    /// Logits of all tokens, each followed in the batch by one of a second sequence: the same tokens backwards.
    fn logits_beside_another(&self) -> Result<Vec<f32>, CheckError> {
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

    /// A context for two sequences.
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

/// All of the model on the reference device, the output counting as a layer.
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

/// Another last token changes no logits before it, or, where every token sees all of its sequence, changes them.
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
            claim: "a later token changes the results of those before it",
            outcome: match outcome {
                Outcome::Agrees(_) => Outcome::Fails("they are the same: no token sees later ones".to_owned()),
                _ => Outcome::Holds,
            },
        }
    } else {
        Finding {
            claim: "a later token does not change the logits of those before it",
            outcome,
        }
    })
}

fn compared(truth: &[f32], found: &[f32], limit: f64) -> Outcome {
    // What a model must never say is as low in both, and beside it all else would be nothing.
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
