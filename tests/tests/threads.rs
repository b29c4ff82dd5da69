//! Models give bit-identical results for any number of threads.

use std::sync::Arc;

use engine::context::{Batch, Context, SeqSet};
use engine::model::Model;
use tests::{context, encode, fixture_names, model, tokens};

/// Prompt length before the compared tokens, if the model supports as many positions.
const HELD: usize = 1000;
/// Number of tokens whose logits are compared.
const COMPARED: usize = 16;

fn context_on(model: &Arc<Model>, n_threads: usize, n_ubatch: usize) -> Context {
    context(model, |p| {
        (p.n_threads, p.n_threads_batch) = (n_threads, n_threads);
        (p.n_ctx, p.n_batch, p.n_ubatch, p.n_outputs_max) = (2048, 2048, n_ubatch, n_ubatch);
    })
}

fn decode(ctx: &mut Context, text: &[u32], from: usize) {
    let mut batch = Batch::new();
    for (pos, &token) in text.iter().enumerate().skip(from) {
        batch.push(token, pos, SeqSet::one(0), pos + COMPARED >= text.len());
    }
    ctx.decode(&batch).unwrap();
}

/// Returns the logits of the tokens after a long prompt, which is decoded in large ubatches, with small ones
/// for its last tokens.
fn logits(ctx: &mut Context, text: &[u32], held: &[u8], n_ubatch: usize) -> Vec<f32> {
    encode(ctx, &text[..64]);
    let n_held = text.len() - COMPARED;
    let from = if n_ubatch < COMPARED { n_held } else { 0 };
    if from > 0 {
        ctx.load_state(held).unwrap();
    }
    decode(ctx, text, from);
    (n_held..text.len())
        .flat_map(|pos| ctx.logits(pos - from).unwrap())
        .copied()
        .collect()
}

fn same_on_all_numbers_of_threads(name: &str) {
    let m = model(name);
    if m.arch().bidirectional {
        return;
    }
    let recorded = tokens(name);
    let n = m
        .max_positions()
        .map_or(HELD + COMPARED, |max| max.min(HELD + COMPARED));
    let text: Vec<u32> = recorded.iter().cycle().take(n).copied().collect();
    let mut held = Vec::new();
    let mut ctx = context_on(&m, 2, 300);
    encode(&mut ctx, &text[..64]);
    decode(&mut ctx, &text[..n - COMPARED], 0);
    ctx.save_state(&mut held).unwrap();
    for n_ubatch in [1, 8, 300] {
        let expected = logits(&mut context_on(&m, 1, n_ubatch), &text, &held, n_ubatch);
        for n_threads in [2, 3, 5, 8] {
            let found = logits(&mut context_on(&m, n_threads, n_ubatch), &text, &held, n_ubatch);
            assert!(found == expected, "{name}: {n_threads} threads, ubatch size {n_ubatch}");
        }
    }
}

#[test]
fn logits_are_independent_of_thread_count() {
    // Models with few KV heads, with windows and sinks, and with token groups and values stored in keys.
    for name in ["llama-dense", "gpt-oss-moe", "deepseek4-moe"] {
        same_on_all_numbers_of_threads(name);
    }
}

#[test]
fn all_rows_of_a_prompt_are_independent_of_thread_count() {
    let m = model("llama-dense");
    let recorded = tokens("llama-dense");
    for n in [300, 327, 359, 1023] {
        let text: Vec<u32> = recorded.iter().cycle().take(n).copied().collect();
        let rows = |n_threads| {
            let mut ctx = context_on(&m, n_threads, 2048);
            let mut batch = Batch::new();
            for (pos, &token) in text.iter().enumerate() {
                batch.push(token, pos, SeqSet::one(0), true);
            }
            ctx.decode(&batch).unwrap();
            let rows = (0..n).flat_map(|i| ctx.logits(i).unwrap().to_vec());
            rows.collect::<Vec<f32>>()
        };
        let expected = rows(1);
        for n_threads in 2..=8 {
            assert!(rows(n_threads) == expected, "{n} tokens, {n_threads} threads");
        }
    }
}

#[test]
#[ignore = "runs 1,000 tokens of every fixture six times"]
fn logits_of_every_fixture_are_independent_of_thread_count() {
    for name in &fixture_names() {
        same_on_all_numbers_of_threads(name);
    }
}
