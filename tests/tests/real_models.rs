//! Two published models against what exact arithmetic says: next-token distributions and greedy continuations.
//!
//! The model files come from the PyPI packages that `shared/conformance/README.md` names; the folder they lie in is given by
//! `LLAMA_MODELS`.

use std::path::PathBuf;
use std::sync::Arc;

use engine::context::{Batch, Context, ContextParams, SeqSet};
use engine::model::{LoadParams, Model};
use serde::Deserialize;

#[derive(Deserialize)]
struct Truth {
    model_file: String,
    tokens: Vec<u32>,
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

/// The truths and models that are there.
fn cases() -> Vec<(Truth, Arc<Model>)> {
    let Some(shared) = tests::shared_dir() else {
        return Vec::new();
    };
    let Some(models) = std::env::var_os("LLAMA_MODELS").map(PathBuf::from) else {
        println!("skipped: LLAMA_MODELS does not name the folder of the model files");
        return Vec::new();
    };
    let mut cases = Vec::new();
    for name in ["SmolLM2-135M-Instruct.Q4_1", "gemma-3-270m-q4_k_m"] {
        let json =
            std::fs::read(shared.join(format!("conformance/models/{name}.json"))).expect("the truth is readable");
        let truth: Truth = serde_json::from_slice(&json).expect("the truth is well-formed");
        let path = models.join(&truth.model_file);
        assert!(path.is_file(), "{} is missing", path.display());
        let model = Model::load(path, archs::ALL, &LoadParams::default()).unwrap_or_else(|e| panic!("{e}"));
        cases.push((truth, Arc::new(model)));
    }
    cases
}

#[test]
#[ignore = "needs the two model files (about 330 MB) and a minute"]
fn distributions_are_closer_to_exact_than_the_peers() {
    for (truth, model) in cases() {
        assert_eq!(
            model.vocab().tokenize(&truth.text, true, false),
            truth.tokens,
            "{}",
            truth.model_file
        );
        let logits = engine::conformance::all_logits(model.clone(), &truth.tokens, &ContextParams::default()).unwrap();
        let n_vocab = model.base().n_vocab();
        let (mut kl, mut top1) = (0.0, 0);
        for (i, row) in logits.chunks(n_vocab).enumerate() {
            kl += divergence(row, &truth.top32_ids[i], &truth.top32_logprobs[i]);
            let best = (0..n_vocab).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
            top1 += (best == truth.top32_ids[i][0]) as usize;
        }
        let n = truth.tokens.len() as f64;
        let (kl, top1) = (kl / n, top1 as f64 / n);
        println!(
            "{}: mean KL {kl:.6} (peer {:.6}), top-1 agreement {top1:.4} (peer {:.4})",
            truth.model_file, truth.peer.kl_mean, truth.peer.top1_agreement
        );
        assert!(kl <= truth.peer.kl_mean);
        assert!(top1 >= truth.peer.top1_agreement);
    }
}

/// KL divergence of the computed distribution from the true one: the 32 likeliest tokens one by one, the rest as one event.
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
#[ignore = "needs the two model files (about 330 MB) and a minute"]
fn greedy_continuations_are_the_recorded_ones() {
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
            "{}: {same} of {} continuations are recorded ones",
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
        let best = (0..row.len())
            .max_by(|&a, &b| row[a].total_cmp(&row[b]).then(b.cmp(&a)))
            .unwrap() as u32;
        if vocab.is_eog(best) {
            break;
        }
        batch.clear();
        batch.push(best, tokens.len(), SeqSet::one(0), true);
        tokens.push(best);
    }
    vocab.detokenize(&tokens, false, true)
}
