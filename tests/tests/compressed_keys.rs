//! Compressed keys: token groups that sequences share, split, truncate, and move between contexts; and expert
//! routing by token.

use std::sync::Arc;

use engine::context::{Batch, Context, ContextParams, MemoryError, SeqSet};
use engine::gguf::{Gguf, GgufFile, Value};
use engine::model::{LoadParams, Model};
use engine::vocab::Token;
use kernels::GgmlType;
use tests::variation::Configuration;
use tests::{decode_last, decode_one, fixture, nmse, place_on};

const LIMIT: f64 = 1e-10;

/// Returns a configuration with small and large groups, an indexer that skips most small groups, and a window that is
/// shorter than both.
fn configuration(n_hash: u32) -> Configuration {
    let header = Gguf::open_header(&fixture("deepseek4-moe").header).expect("the fixture is readable");
    let keys = [
        ("embedding_length", Value::U32(96)),
        ("expert_feed_forward_length", Value::U32(64)),
        ("attention.indexer.head_count", Value::U32(8)),
        ("attention.compress_ratios", Value::from(vec![4u32, 128, 0, 4])),
        ("attention.indexer.top_k", Value::U32(5)),
        ("attention.sliding_window", Value::U32(16)),
        ("hash_layer_count", Value::U32(n_hash)),
        ("expert_count", Value::U32(4)),
    ];
    let changed = Configuration::of(&header).changed(0, &keys);
    changed.expect("the architecture accepts the keys")
}

fn load(bytes: &[u8], params: &LoadParams) -> Arc<Model> {
    let file = GgufFile::from_bytes("groups.gguf", bytes).expect("a valid file");
    Model::from_file(file, archs::ALL, params)
        .expect("the model loads")
        .into()
}

fn model() -> Arc<Model> {
    load(&configuration(0).file(), &LoadParams::default())
}

fn text(seed: usize, n: usize) -> Vec<Token> {
    (0..n)
        .map(|i| ((i * i * 7 + i * 3 + seed * 11) % 29) as Token)
        .collect()
}

/// Creates a context with one thread, because the models are small.
fn context(m: &Arc<Model>, change: impl FnOnce(&mut ContextParams)) -> Context {
    tests::context(m, |p| {
        (p.n_threads, p.n_threads_batch) = (1, 1);
        change(p);
    })
}

fn long(m: &Arc<Model>) -> Context {
    context(m, |p| p.n_ctx = 600)
}

/// Returns the logits after a text decoded in one batch.
fn alone(m: &Arc<Model>, t: &[Token]) -> Vec<f32> {
    decode_last(&mut long(m), t, 0, 0)
}

#[track_caller]
fn same(expected: &[f32], found: &[f32]) {
    let error = nmse(expected, found);
    assert!(error < LIMIT, "{error:.3e}");
}

#[test]
fn compressed_sequences_are_independent() {
    let (m, a, b) = (model(), text(1, 270), text(2, 261));
    for n_ubatch in [5, 64] {
        let mut ctx = context(&m, |p| (p.n_ctx, p.n_ubatch, p.n_seq_max) = (600, n_ubatch, 3));
        let mut batch = Batch::new();
        for pos in 0..a.len() {
            // Sequences 0 and 2 share their tokens.
            batch.push(a[pos], pos, SeqSet::of([0, 2]), pos + 1 == a.len());
            if let Some(&token) = b.get(pos) {
                batch.push(token, pos, SeqSet::one(1), pos + 1 == b.len());
            }
        }
        ctx.decode(&batch).expect("the context has enough cells");
        let last_of = |seqs: SeqSet| {
            let index = batch.tokens().iter().rposition(|t| t.seqs == seqs);
            ctx.logits(index.expect("the sequence has tokens"))
                .expect("the token has output")
        };
        same(&alone(&m, &a), last_of(SeqSet::of([0, 2])));
        same(&alone(&m, &b), last_of(SeqSet::one(1)));
    }
}

#[test]
fn sequences_diverge_within_group() {
    let (m, t) = (model(), text(3, 131));
    let mut ctx = context(&m, |p| (p.n_ctx, p.n_seq_max) = (600, 2));
    decode_last(&mut ctx, &t, 0, 0);
    ctx.seq_cp(0, 1, ..).expect("the whole sequence can be copied");
    let (first, second) = (text(4, 140), text(5, 140));
    let of_first = decode_last(&mut ctx, &first, t.len(), 0);
    let of_second = decode_last(&mut ctx, &second, t.len(), 1);
    same(&alone(&m, &[&t[..], &first].concat()), &of_first);
    same(&alone(&m, &[&t[..], &second].concat()), &of_second);
}

#[test]
fn truncation_requires_checkpoint() {
    let (m, t) = (model(), text(6, 140));
    let mut ctx = context(&m, |p| (p.n_ctx, p.n_rollback) = (600, 14));
    decode_last(&mut ctx, &t, 0, 0);
    // Position 90 splits a group of 128; positions 4 to 8 are one group of 4.
    assert!(matches!(ctx.seq_rm(0, 90..), Err(MemoryError::StateForgotten { .. })));
    assert!(matches!(ctx.seq_rm(0, 4..8), Err(MemoryError::Inseparable { .. })));
    assert!(ctx.seq_add(0, .., 4).is_err() && ctx.check_shift().is_err());
    ctx.seq_rm(0, 127..).expect("a checkpoint");
    let other = text(7, 30);
    let found = decode_last(&mut ctx, &other, 127, 0);
    same(&alone(&m, &[&t[..127], &other].concat()), &found);
}

#[test]
fn groups_match_definition() {
    let (bytes, t) = (configuration(1).file(), text(8, 150));
    let whole = alone(&load(&bytes, &LoadParams::default()), &t);
    for n_layers in [2, 4, 5] {
        let mut params = LoadParams::default();
        place_on(&mut params, "reference", n_layers);
        let plain = load(&bytes, &params);
        same(&whole, &alone(&plain, &t));
    }
}

#[test]
fn groups_are_saved_and_restored() {
    let (m, t) = (model(), text(9, 200));
    let mut ctx = long(&m);
    decode_last(&mut ctx, &t[..190], 0, 0);
    let mut state = Vec::new();
    ctx.save_seq(0, &mut state).expect("saving to memory succeeds");
    // The target context has a different size and used cells.
    let mut other = context(&m, |p| (p.n_ctx, p.n_seq_max) = (400, 2));
    decode_last(&mut other, &text(10, 77), 0, 0);
    other.load_seq(1, &state).expect("the context has enough cells");
    let mut found = Vec::new();
    for (pos, &token) in t.iter().enumerate().skip(190) {
        found = decode_one(&mut other, token, pos, 1);
    }
    same(&alone(&m, &t), &found);
}

#[test]
fn group_uses_one_cell() {
    let m = model();
    let cells = |n_ctx: usize| context(&m, |p| (p.n_ctx, p.n_ubatch) = (n_ctx, 16)).sizes().kv / size_of::<f32>();
    // Per 512 tokens, two layers store 128 keys of 64 elements and 128 indexer keys of 128 elements, and one
    // layer 4 keys. The window size is constant.
    assert_eq!(cells(2048) - cells(1536), 2 * 128 * (64 + 128) + 4 * 64);
}

#[test]
fn failed_decode_keeps_groups() {
    let (m, t) = (model(), text(11, 160));
    let mut ctx = context(&m, |p| p.n_ctx = 160);
    decode_last(&mut ctx, &t[..150], 0, 0);
    let mut batch = Batch::new();
    batch.push_prompt(&text(12, 40), 150, 0);
    assert!(ctx.decode(&batch).is_err(), "the context is full");
    let found = decode_last(&mut ctx, &t[150..], 150, 0);
    same(&alone(&m, &t), &found);
}

#[test]
fn expert_table_with_invalid_id_fails() {
    let c = configuration(2);
    let mut bytes = c.file();
    let header = Gguf::parse_header(&bytes).expect("a valid file");
    let table = header.tensors().iter().find(|t| t.ty == GgmlType::I32);
    let start = header.data_offset() + table.expect("the first layers have an expert table").offset;
    bytes[start..start + 4].copy_from_slice(&4i32.to_le_bytes());
    let m = load(&bytes, &LoadParams::default());
    let mut ctx = long(&m);
    let mut batch = Batch::new();
    batch.push(0, 0, SeqSet::one(0), true);
    let error = ctx.decode(&batch).expect_err("the model has four experts").to_string();
    assert!(
        error.contains("index 4 is out of range for a table of 4 rows"),
        "{error}"
    );
    // Different tokens select different experts.
    decode_last(&mut ctx, &[1], 0, 0);
}
