//! Compares two published models with reference results in exact arithmetic: tokens, next-token distributions, and
//! greedy continuations.
//!
//! `data/models/README.md` describes how the reference was recorded.

use std::sync::Arc;

use engine::context::{Batch, Context, ContextParams, SeqSet};
use engine::model::Model;
use engine::vocab::{Token, Utf8Stream};
use kernels::Precision;
use serde::Deserialize;
use tests::published::{self, GEMMA3, SMOLLM2};

#[derive(Deserialize)]
struct Truth {
    model_file: String,
    tokens: Vec<Token>,
    text: String,
    peer: Peer,
    top32_ids: Vec<Vec<usize>>,
    top32_logprobs: Vec<Vec<f64>>,
    greedy_48: std::collections::BTreeMap<String, Greedy>,
}

#[derive(Deserialize)]
struct Peer {
    kl_mean: f64,
    top1_agreement: f64,
}

#[derive(Deserialize)]
struct Greedy {
    f32: String,
    quantized: String,
}

/// Returns the references and the models.
fn cases() -> [(Truth, Arc<Model>); 2] {
    [SMOLLM2, GEMMA3].map(|file| {
        let json = tests::data_dir().join("models").join(file).with_extension("json");
        let json = std::fs::read(json).expect("the reference file is readable");
        let truth: Truth = serde_json::from_slice(&json).expect("the reference file is valid");
        assert_eq!(truth.model_file, file);
        (truth, published::model(file))
    })
}

#[test]
#[ignore = "downloads two models (340 MB)"]
fn tokenization_matches_recording_and_round_trips() {
    for (truth, model) in cases() {
        let (vocab, file) = (model.vocab(), &truth.model_file);
        assert_eq!(vocab.tokenize(&truth.text, true, false), truth.tokens, "{file}");
        assert_eq!(vocab.detokenize(&truth.tokens, true, false), truth.text, "{file}");
        let (mut stream, mut streamed) = (Utf8Stream::new(), String::new());
        for &token in &truth.tokens {
            stream.push(vocab.token_to_piece(token, false), &mut streamed);
        }
        stream.flush(&mut streamed);
        assert_eq!(streamed, truth.text, "{file}");
        assert!(!vocab.eog_tokens().is_empty(), "{file}");
    }
}

/// Covers prompts (full ubatches) and decoding (ubatches of one token), which use different kernels.
#[test]
#[ignore = "downloads two models (340 MB) and takes several minutes"]
fn kl_divergence_is_half_of_peer() {
    for (truth, model) in cases() {
        for (precision, n_ubatch) in [
            (Precision::Exact, 512),
            (Precision::High, 512),
            (Precision::High, 1),
            (Precision::Fast, 512),
        ] {
            let params = ContextParams {
                precision,
                n_ubatch,
                ..ContextParams::default()
            };
            let logits = engine::conformance::all_logits(model.clone(), &truth.tokens, &params).unwrap();
            let (kl, top1) = against_truth(&truth, &logits, model.base().n_vocab());
            println!(
                "{}, {precision:?}, ubatch size {n_ubatch}: mean KL {kl:.6} (peer {:.6}), top-1 agreement {top1:.4} (peer {:.4})",
                truth.model_file, truth.peer.kl_mean, truth.peer.top1_agreement
            );
            assert!(kl <= truth.peer.kl_mean / 2.0);
            // The peer's value is recorded with four digits.
            assert!((top1 * 1e4).round() >= (truth.peer.top1_agreement * 1e4).round());
        }
    }
}

/// Returns the mean KL divergence from the reference distributions, and the top-1 agreement.
fn against_truth(truth: &Truth, logits: &[f32], n_vocab: usize) -> (f64, f64) {
    let (mut kl, mut top1) = (0.0, 0);
    for (i, row) in logits.chunks(n_vocab).enumerate() {
        kl += divergence(row, &truth.top32_ids[i], &truth.top32_logprobs[i]);
        let best = (0..n_vocab).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
        top1 += (best == truth.top32_ids[i][0]) as usize;
    }
    let n = truth.tokens.len() as f64;
    (kl / n, top1 as f64 / n)
}

/// Returns the KL divergence from the reference, with the 32 most likely tokens individually and all other tokens as
/// one event.
fn divergence(logits: &[f32], ids: &[usize], logprobs: &[f64]) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
    let norm = max + logits.iter().map(|&l| (f64::from(l) - max).exp()).sum::<f64>().ln();
    let (mut kl, mut p_sum, mut q_sum) = (0.0, 0.0, 0.0);
    for (&id, &lp) in ids.iter().zip(logprobs) {
        let lq = f64::from(logits[id]) - norm;
        kl += lp.exp() * (lp - lq);
        p_sum += lp.exp();
        q_sum += lq.exp();
    }
    let (p, q) = ((1.0 - p_sum).max(1e-9), (1.0 - q_sum).max(1e-9));
    kl + p * (p / q).ln()
}

#[test]
#[ignore = "downloads two models (340 MB) and takes a minute"]
fn greedy_continuations_match_recording() {
    for (truth, model) in cases() {
        let mut same = 0;
        for (prompt, recorded) in &truth.greedy_48 {
            let text = greedy(&model, prompt, 48);
            let is_same = [&recorded.f32, &recorded.quantized]
                .iter()
                .any(|r| r.trim_end() == text.trim_end());
            if !is_same {
                println!(
                    "{}: {text:?}\n  f32 {:?}\n  quantized {:?}",
                    truth.model_file, recorded.f32, recorded.quantized
                );
            }
            same += is_same as usize;
        }
        println!(
            "{}: {same} of {} continuations match the recording",
            truth.model_file,
            truth.greedy_48.len()
        );
        assert!(same >= 7);
    }
}

fn greedy(model: &Arc<Model>, prompt: &str, n: usize) -> String {
    let vocab = model.vocab();
    let mut tokens = vocab.tokenize(prompt, true, true);
    let mut ctx = Context::new(
        model.clone(),
        &ContextParams {
            n_ctx: 256,
            ..ContextParams::default()
        },
    )
    .unwrap();
    let mut batch = Batch::new();
    batch.push_prompt(&tokens, 0, 0);
    for _ in 0..n {
        ctx.decode(&batch).unwrap();
        let row = ctx.logits(batch.len() - 1).unwrap();
        let best = likeliest(row);
        if vocab.is_eog(best) {
            break;
        }
        batch.clear();
        batch.push(best, tokens.len(), SeqSet::one(0), true);
        tokens.push(best);
    }
    vocab.detokenize(&tokens, false, true)
}

/// Variant that must not change the generated text.
#[derive(Clone, Copy, Debug)]
struct Way {
    n_ubatch: usize,
    /// Number of generated tokens after which the state moves to a new context.
    restore_at: Option<usize>,
    /// Whether to interleave a second sequence in every batch.
    with_second: bool,
}

#[test]
#[ignore = "downloads two models (340 MB) and takes several minutes"]
fn greedy_text_is_independent_of_batches_states_and_sequences() {
    let plain = Way {
        n_ubatch: 512,
        restore_at: None,
        with_second: false,
    };
    let mut ways: Vec<Way> = [1, 7, 64].map(|n_ubatch| Way { n_ubatch, ..plain }).to_vec();
    ways.extend([0, 11].map(|n| Way {
        restore_at: Some(n),
        ..plain
    }));
    ways.extend([7, 512].map(|n_ubatch| Way {
        n_ubatch,
        with_second: true,
        ..plain
    }));
    for (truth, model) in cases() {
        let vocab = model.vocab();
        // A prefix of the long text, and a short prompt.
        let long = truth.tokens[..150].to_vec();
        let short = vocab.tokenize("The quick brown fox", true, true);
        for prompt in [&long, &short] {
            let expected = continuation(&model, prompt, plain, 32);
            for &way in &ways {
                let found = continuation(&model, prompt, way, 32);
                assert_eq!(
                    vocab.detokenize(&expected, false, true),
                    vocab.detokenize(&found, false, true),
                    "{}: {way:?}",
                    truth.model_file
                );
                assert_eq!(expected, found);
            }
        }
    }
}

/// Returns up to `n` greedy tokens after a prompt.
fn continuation(model: &Arc<Model>, prompt: &[Token], way: Way, n: usize) -> Vec<Token> {
    let params = ContextParams {
        n_ctx: 512,
        n_ubatch: way.n_ubatch,
        n_seq_max: 2,
        // `Fast` rounds long prompts more than short ones.
        precision: Precision::High,
        ..ContextParams::default()
    };
    let context = || Context::new(model.clone(), &params).expect("the context parameters are valid");
    let mut ctx = context();
    // The second sequence repeats the prompt in reverse.
    let mut others = prompt.iter().rev().cycle();
    let (mut batch, mut text, mut pos) = (Batch::new(), Vec::new(), 0);
    let mut next: Vec<Token> = prompt.to_vec();
    while text.len() < n {
        batch.clear();
        for (i, &token) in next.iter().enumerate() {
            if let Some(&other) = others.next()
                && way.with_second
            {
                batch.push(other, pos, SeqSet::one(1), false);
            }
            batch.push(token, pos, SeqSet::one(0), i + 1 == next.len());
            pos += 1;
        }
        ctx.decode(&batch).expect("the batch is decoded");
        let best = likeliest(ctx.logits(batch.len() - 1).expect("the last token has output"));
        if model.vocab().is_eog(best) {
            break;
        }
        if way.restore_at == Some(text.len()) {
            let mut state = Vec::new();
            ctx.save_state(&mut state).expect("the state is saved");
            ctx = context();
            ctx.load_state(&state).expect("the state is restored");
        }
        text.push(best);
        next = vec![best];
    }
    text
}

/// Returns the token with the largest logit; the first if several are equal.
fn likeliest(logits: &[f32]) -> Token {
    let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a)));
    best.expect("the vocabulary is not empty") as Token
}
