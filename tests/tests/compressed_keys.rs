//! Compressed keys: groups of tokens that sequences share, part in, are cut in, and carry from context to context; and routing by token.

use std::sync::Arc;

use engine::context::{Batch, Context, ContextParams, MemoryError, SeqSet};
use engine::gguf::{Gguf, GgufFile, Value};
use engine::model::{LoadParams, Model};
use engine::vocab::Token;
use kernels::GgmlType;
use tests::variation::Configuration;
use tests::{decode_last, decode_one, fixture, nmse, place_on};

const LIMIT: f64 = 1e-10;

/// Small and large groups, with an indexer that leaves most of the small ones out, and a window shorter than either reaches.
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
    changed.expect("the keys are accepted")
}

fn load(bytes: &[u8], params: &LoadParams) -> Arc<Model> {
    let file = GgufFile::from_bytes("groups.gguf", bytes).expect("a sound file");
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

/// One thread: the models are small.
fn context(m: &Arc<Model>, change: impl FnOnce(&mut ContextParams)) -> Context {
    tests::context(m, |p| {
        (p.n_threads, p.n_threads_batch) = (1, 1);
        change(p);
    })
}

fn long(m: &Arc<Model>) -> Context {
    context(m, |p| p.n_ctx = 600)
}

/// What follows a text that is decoded as a whole.
fn alone(m: &Arc<Model>, t: &[Token]) -> Vec<f32> {
    decode_last(&mut long(m), t, 0, 0)
}

#[track_caller]
fn same(expected: &[f32], found: &[f32]) {
    let error = nmse(expected, found);
    assert!(error < LIMIT, "{error:.3e}");
}

#[test]
fn sequences_do_not_see_each_other_however_they_are_cut() {
    let (m, a, b) = (model(), text(1, 270), text(2, 261));
    for n_ubatch in [5, 64] {
        let mut ctx = context(&m, |p| (p.n_ctx, p.n_ubatch, p.n_seq_max) = (600, n_ubatch, 3));
        let mut batch = Batch::new();
        for pos in 0..a.len() {
            // Sequences 0 and 2 are one text.
            batch.push(a[pos], pos, SeqSet(0b101), pos + 1 == a.len());
            if let Some(&token) = b.get(pos) {
                batch.push(token, pos, SeqSet::one(1), pos + 1 == b.len());
            }
        }
        ctx.decode(&batch).expect("there is room");
        let last_of = |seqs: SeqSet| {
            let index = batch.tokens().iter().rposition(|t| t.seqs == seqs);
            ctx.logits(index.expect("it has tokens")).expect("it has output")
        };
        same(&alone(&m, &a), last_of(SeqSet(0b101)));
        same(&alone(&m, &b), last_of(SeqSet::one(1)));
    }
}

#[test]
fn sequences_part_within_a_group() {
    let (m, t) = (model(), text(3, 131));
    let mut ctx = context(&m, |p| (p.n_ctx, p.n_seq_max) = (600, 2));
    decode_last(&mut ctx, &t, 0, 0);
    ctx.seq_cp(0, 1, ..).expect("all of it");
    let (first, second) = (text(4, 140), text(5, 140));
    let of_first = decode_last(&mut ctx, &first, t.len(), 0);
    let of_second = decode_last(&mut ctx, &second, t.len(), 1);
    same(&alone(&m, &[&t[..], &first].concat()), &of_first);
    same(&alone(&m, &[&t[..], &second].concat()), &of_second);
}

#[test]
fn sequences_are_cut_back_to_checkpoints_only() {
    let (m, t) = (model(), text(6, 140));
    let mut ctx = context(&m, |p| (p.n_ctx, p.n_rollback) = (600, 14));
    decode_last(&mut ctx, &t, 0, 0);
    // Into the group of 128 and one of 4.
    assert!(matches!(ctx.seq_rm(0, 90..), Err(MemoryError::StateForgotten { .. })));
    assert!(matches!(ctx.seq_rm(0, 4..8), Err(MemoryError::Inseparable { .. })));
    assert!(ctx.seq_add(0, .., 4).is_err() && ctx.check_shift().is_err());
    ctx.seq_rm(0, 127..).expect("a checkpoint");
    let other = text(7, 30);
    let found = decode_last(&mut ctx, &other, 127, 0);
    same(&alone(&m, &[&t[..127], &other].concat()), &found);
}

#[test]
fn groups_are_what_the_definition_says() {
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
    ctx.save_seq(0, &mut state).expect("it is written");
    // Another size, and cells that are in use.
    let mut other = context(&m, |p| (p.n_ctx, p.n_seq_max) = (400, 2));
    decode_last(&mut other, &text(10, 77), 0, 0);
    other.load_seq(1, &state).expect("there is room");
    let mut found = Vec::new();
    for (pos, &token) in t.iter().enumerate().skip(190) {
        found = decode_one(&mut other, token, pos, 1);
    }
    same(&alone(&m, &t), &found);
}

#[test]
fn groups_take_a_cell_each() {
    let m = model();
    let cells = |n_ctx: usize| context(&m, |p| (p.n_ctx, p.n_ubatch) = (n_ctx, 16)).sizes().kv / size_of::<f32>();
    // Of each 512 tokens: 128 keys of 64 and as many of an indexer's 128 in two layers, and 4 keys in one. The window stays.
    assert_eq!(cells(2048) - cells(1536), 2 * 128 * (64 + 128) + 4 * 64);
}

#[test]
fn a_failed_decode_leaves_groups_as_they_were() {
    let (m, t) = (model(), text(11, 160));
    let mut ctx = context(&m, |p| p.n_ctx = 160);
    decode_last(&mut ctx, &t[..150], 0, 0);
    let mut batch = Batch::new();
    batch.push_prompt(&text(12, 40), 150, 0);
    assert!(ctx.decode(&batch).is_err(), "there is no room");
    let found = decode_last(&mut ctx, &t[150..], 150, 0);
    same(&alone(&m, &t), &found);
}

#[test]
fn experts_that_a_table_names_must_be_there() {
    let c = configuration(2);
    let mut bytes = c.file();
    let header = Gguf::parse_header(&bytes).expect("a sound file");
    let table = header.tensors().iter().find(|t| t.ty == GgmlType::I32);
    let start = header.data_offset() + table.expect("the first layers have one").offset;
    bytes[start..start + 4].copy_from_slice(&4i32.to_le_bytes());
    let m = load(&bytes, &LoadParams::default());
    let mut ctx = long(&m);
    let mut batch = Batch::new();
    batch.push(0, 0, SeqSet::one(0), true);
    let error = ctx.decode(&batch).expect_err("there are four experts").to_string();
    assert!(error.contains("row 4 of 4"), "{error}");
    // Other tokens go elsewhere.
    decode_last(&mut ctx, &[1], 0, 0);
}
