//! Embeddings: pooling of several sequences, hidden states of causal models, classifiers, and a published
//! encoder.

use std::sync::Arc;

use engine::builder::{BuildError, Pooling};
use engine::context::{Batch, Context, ContextError, MediaRows, SeqSet};
use engine::gguf::seeded;
use engine::model::Model;
use engine::vocab::Token;
use serde::Deserialize;
use tests::{context, model, nmse, published, tokens};

/// Creates a batch of sequences from position 0, with output for every token.
fn batch(sequences: &[&[Token]]) -> Batch {
    let mut batch = Batch::new();
    for (seq, tokens) in sequences.iter().enumerate() {
        for (pos, &token) in tokens.iter().enumerate() {
            batch.push(token, pos, SeqSet::one(seq), true);
        }
    }
    batch
}

fn pooled_context(model: &Arc<Model>, pooling: Pooling) -> Context {
    context(model, |p| {
        p.pooling = Some(pooling);
        p.n_seq_max = 3;
    })
}

/// Returns the embedding of each sequence.
fn embeddings(model: &Arc<Model>, pooling: Pooling, sequences: &[&[Token]]) -> Vec<Vec<f32>> {
    let mut ctx = pooled_context(model, pooling);
    ctx.decode(&batch(sequences)).unwrap();
    assert!(ctx.embedding(sequences.len()).is_none(), "the sequence does not exist");
    (0..sequences.len())
        .map(|s| ctx.embedding(s).unwrap().to_vec())
        .collect()
}

/// Returns the hidden state of each token of one sequence.
fn rows(model: &Arc<Model>, tokens: &[Token]) -> Vec<Vec<f32>> {
    let mut ctx = pooled_context(model, Pooling::None);
    ctx.decode(&batch(&[tokens])).unwrap();
    (0..tokens.len()).map(|i| ctx.logits(i).unwrap().to_vec()).collect()
}

fn mean(rows: &[Vec<f32>]) -> Vec<f32> {
    let n = rows.len() as f32;
    (0..rows[0].len())
        .map(|i| rows.iter().map(|r| r[i]).sum::<f32>() / n)
        .collect()
}

#[test]
fn batched_embeddings_match_single_ones() {
    for name in [
        "bert-dense",
        "jina-bert-v2-dense",
        "gemma-embedding-dense",
        "qwen3-dense",
    ] {
        let (m, t) = (model(name), tokens(name));
        let sequences = [&t[..20], &t[20..21], &t[21..60]];
        let alone: Vec<_> = sequences.iter().map(|s| rows(&m, s)).collect();
        for pooling in [Pooling::Mean, Pooling::Cls, Pooling::Last] {
            for (found, rows) in embeddings(&m, pooling, &sequences).iter().zip(&alone) {
                let expected = match pooling {
                    Pooling::Mean => &mean(rows),
                    Pooling::Cls => &rows[0],
                    _ => &rows[rows.len() - 1],
                };
                let error = nmse(expected, found);
                assert!(error < 1e-9, "{name} {}: {error:e}", pooling.name());
            }
        }
    }
}

#[test]
fn hidden_states_times_output_matrix_are_logits() {
    let (m, t) = (model("qwen3-dense"), tokens("qwen3-dense"));
    let hidden = rows(&m, &t[..30]);
    let (n_embd, n_vocab) = (m.base().n_embd(), m.base().n_vocab());
    let mut output = vec![0.0; n_embd * n_vocab];
    seeded::fill_f32("output.weight", 1, &mut output);
    let mut ctx = context(&m, |p| p.n_outputs_max = 30);
    ctx.decode(&batch(&[&t[..30]])).unwrap();
    for (i, h) in hidden.iter().enumerate() {
        let dot = |row: &[f32]| row.iter().zip(h).map(|(a, b)| f64::from(a * b)).sum::<f64>() as f32;
        let expected: Vec<f32> = output.chunks(n_embd).map(dot).collect();
        assert!(nmse(&expected, ctx.logits(i).unwrap()) < 1e-9);
    }
}

/// Media rows that equal the embeddings of tokens have the pooled embedding of these tokens.
#[test]
fn pooled_embeddings_read_media_rows() {
    let (m, t) = (model("llama-dense"), tokens("llama-dense"));
    let (n_embd, n_vocab) = (m.base().n_embd(), m.base().n_vocab());
    let mut table = vec![0.0; n_embd * n_vocab];
    seeded::fill_f32("token_embd.weight", 1, &mut table);
    let row = |token: &Token| table[*token as usize * n_embd..][..n_embd].to_vec();
    let media = Arc::new(MediaRows::new(7, n_embd, t[4..12].iter().flat_map(row).collect()));
    for pooling in [Pooling::Last, Pooling::Mean] {
        let mut ctx = context(&m, |p| {
            p.pooling = Some(pooling);
            p.n_seq_max = 3;
            p.media_rows = media.len();
        });
        let mut with_media = batch(&[&t[..20]]);
        for (pos, &token) in t[..4].iter().enumerate() {
            with_media.push(token, pos, SeqSet::one(1), true);
        }
        with_media.push_media(&media, 0..media.len(), 4, SeqSet::one(1));
        for (i, &token) in t[12..20].iter().enumerate() {
            with_media.push(token, 12 + i, SeqSet::one(1), true);
        }
        with_media.request_all();
        ctx.decode(&with_media).unwrap();
        assert!(
            nmse(ctx.embedding(0).unwrap(), ctx.embedding(1).unwrap()) < 1e-10,
            "{pooling:?}"
        );
    }
}

#[test]
fn classifier_scores_first_token() {
    let (m, t) = (model("bert-dense"), tokens("bert-dense"));
    let n = m.base().n_embd();
    let weight = |name: &str, len: usize| {
        let mut values = vec![0.0; len];
        seeded::fill_f32(name, 1, &mut values);
        values
    };
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| f64::from(x * y)).sum::<f64>() as f32;
    let (w, b) = (weight("cls.weight", n * n), weight("cls.bias", n));
    let (w_out, b_out) = (weight("cls.output.weight", n), weight("cls.output.bias", 1));
    let score = |x: &[f32]| {
        let h: Vec<f32> = w.chunks(n).zip(&b).map(|(row, b)| (dot(row, x) + b).tanh()).collect();
        dot(&w_out, &h) + b_out[0]
    };
    let sequences = [&t[..20], &t[20..50]];
    for (found, sequence) in embeddings(&m, Pooling::Rank, &sequences).iter().zip(sequences) {
        let expected = score(&rows(&m, sequence)[0]);
        assert!(
            found.len() == 1 && (found[0] - expected).abs() < 1e-4,
            "{found:?}, expected {expected}"
        );
    }
}

#[test]
fn rank_pooling_without_classifier_is_an_error() {
    let m = model("llama-dense");
    let mut params = tests::exact().context;
    params.n_ctx = 96;
    params.pooling = Some(Pooling::Rank);
    let error = Context::new(m, &params).err().unwrap();
    assert!(
        matches!(error, ContextError::Build(BuildError::NoClassifier)),
        "{error}"
    );
}

#[derive(Deserialize)]
struct Recorded {
    text: String,
    tokens: Vec<Token>,
    embedding: Vec<f32>,
}

/// `tests/tools/sentence_encoder.py` creates the model file and the records. The tokens come from another
/// tokenizer, and the vectors from another implementation in f64.
#[test]
#[ignore = "downloads a model (90 MB)"]
fn published_encoder_matches_recorded_vectors() {
    let model = published::model(published::MINILM);
    let json = std::fs::read(tests::data_dir().join("embeddings/all-minilm-l6-v2.json")).unwrap();
    let records: Vec<Recorded> = serde_json::from_slice(&json).unwrap();
    assert_eq!(model.base().pooling, Some(Pooling::Mean));
    for record in records {
        let tokens = model.vocab().tokenize(&record.text, true, true);
        assert_eq!(tokens, record.tokens, "{}", record.text);
        let found = &embeddings(&model, Pooling::Mean, &[&tokens])[0];
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| f64::from(x * y)).sum::<f64>();
        let expected = &record.embedding;
        let cosine = dot(found, expected) / (dot(found, found) * dot(expected, expected)).sqrt();
        println!("{cosine:.8} {}", record.text);
        assert!(cosine >= 0.9999, "{cosine} {}", record.text);
    }
}
