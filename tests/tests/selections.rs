//! Sparse attention to selected cells, blocks, or pools, and grouped expert selection, compared with recorded logits of
//! configurations in which the selection matters.

use engine::conformance::{CheckParams, Fixture};
use engine::context::{Batch, Context, SeqSet};
use engine::gguf::{Array, Gguf, Value};
use engine::model::Model;
use engine::vocab::Token;
use tests::variation::Configuration;
use tests::{context, data_dir, decode_last, exact, fixture, nmse};

/// A recording: a fixture with more layers and other key values.
struct Recording {
    name: &'static str,
    fixture: &'static str,
    more_layers: usize,
    keys: &'static [(&'static str, Key)],
    /// Metadata keys with which no cell is skipped.
    all: &'static [(&'static str, Key)],
}

#[derive(Clone, Copy)]
enum Key {
    N(u32),
    Flag(bool),
    List(&'static [u32]),
}

use Key::{Flag, List, N};

const HEADS: (&str, Key) = ("attention.indexer.head_count", N(8));
const TOP_K: &str = "attention.indexer.top_k";
const TYPES: &str = "attention.indexer.types";
const BLOCK: &str = "attention.indexer.block_size";
const LOCAL: &str = "attention.indexer.local_blocks";
const POOL: &str = "attention.indexer.kpool";
const TAIL: &str = "attention.indexer.kpool_select_tail";
const GROUPS: &str = "expert_group_count";
const GROUPS_USED: &str = "expert_group_used_count";
const RATIOS: &str = "attention.compress_ratios";
const ALL_CELLS: &[(&str, Key)] = &[(TOP_K, N(4800))];
const ALL_EXPERTS: &[(&str, Key)] = &[(GROUPS_USED, N(4))];

const fn of(
    name: &'static str,
    fixture: &'static str,
    more_layers: usize,
    keys: &'static [(&'static str, Key)],
) -> Recording {
    let all = ALL_CELLS;
    Recording {
        name,
        fixture,
        more_layers,
        keys,
        all,
    }
}

const fn experts(name: &'static str, fixture: &'static str, keys: &'static [(&'static str, Key)]) -> Recording {
    let (more_layers, all) = (1, ALL_EXPERTS);
    Recording {
        name,
        fixture,
        more_layers,
        keys,
        all,
    }
}

const RECORDINGS: &[Recording] = &[
    of(
        "minimax-m3-4",
        "minimax-m3-moe",
        1,
        &[(TOP_K, N(3)), (BLOCK, N(4)), (LOCAL, N(1))],
    ),
    of("qwen4exp-8", "qwen4exp-moe", 2, &[(TOP_K, N(8))]),
    of(
        "qwen4exp-15",
        "qwen4exp-moe",
        2,
        &[(TOP_K, N(15)), (RATIOS, List(&[0, 3, 3, 3])), HEADS],
    ),
    of(
        "minimax-m3-5",
        "minimax-m3-moe",
        0,
        &[(TOP_K, N(6)), (BLOCK, N(5)), (LOCAL, N(2))],
    ),
    of(
        "minimax-m3-16",
        "minimax-m3-moe",
        2,
        &[
            (TOP_K, N(2)),
            (BLOCK, N(16)),
            (LOCAL, N(0)),
            ("attention.head_count", N(6)),
        ],
    ),
    of(
        "minimax-m3-3",
        "minimax-m3-moe",
        0,
        &[(TOP_K, N(2)), (BLOCK, N(3)), (LOCAL, N(5))],
    ),
    of(
        "glm5-next-4",
        "glm5-next-moe",
        2,
        &[HEADS, (TOP_K, N(12)), (POOL, N(4))],
    ),
    of(
        "glm5-next-8",
        "glm5-next-moe",
        4,
        &[HEADS, (TOP_K, N(32)), (POOL, N(8)), (TYPES, List(&[1, 0, 0, 0, 1, 0]))],
    ),
    of(
        "glm5-next-3",
        "glm5-next-moe",
        1,
        &[HEADS, (TOP_K, N(15)), (POOL, N(3)), (TAIL, Flag(false))],
    ),
    of("deepseek32-8", "deepseek32-moe", 1, &[HEADS, (TOP_K, N(8))]),
    of(
        "glm-dsa-10",
        "glm-dsa-moe",
        2,
        &[HEADS, (TOP_K, N(10)), (TYPES, List(&[1, 0, 1, 0]))],
    ),
    of("dots3note-12", "dots3note-moe", 2, &[HEADS, (TOP_K, N(12))]),
    of("hy_v4-9", "hy_v4-moe", 2, &[HEADS, (TOP_K, N(9))]),
    // Groups of 128 tokens need longer reference results.
    of(
        "deepseek4-2",
        "deepseek4-moe",
        1,
        &[
            (TOP_K, N(2)),
            ("attention.compress_ratios", List(&[4, 128, 0, 4, 128])),
            ("attention.output_group_count", N(4)),
        ],
    ),
    experts(
        "bailingmoe2-groups",
        "bailingmoe2-moe",
        &[
            ("expert_count", N(16)),
            ("expert_used_count", N(3)),
            (GROUPS, N(4)),
            (GROUPS_USED, N(2)),
        ],
    ),
    experts(
        "deepseek2-groups",
        "deepseek2-moe",
        &[
            ("expert_count", N(12)),
            ("expert_used_count", N(4)),
            (GROUPS, N(4)),
            (GROUPS_USED, N(1)),
        ],
    ),
];

impl Recording {
    /// Returns the configuration with additional keys.
    fn configuration(&self, more: &[(&'static str, Key)]) -> Configuration {
        let plain =
            Configuration::of(&Gguf::open_header(&fixture(self.fixture).header).expect("the fixture is readable"));
        let value = |key| match key {
            N(n) => Value::U32(n),
            Flag(on) => Value::Bool(on),
            List(list) => Value::Array(Array::U32(list.to_vec())),
        };
        let keys: Vec<_> = self.keys.iter().chain(more).map(|&(key, v)| (key, value(v))).collect();
        plain
            .changed(self.more_layers, &keys)
            .expect("the architecture accepts the keys")
    }

    fn recorded(&self) -> Fixture {
        let dir = data_dir().join("selections");
        Fixture {
            name: self.name.to_owned(),
            header: dir.join(format!("{}.header.gguf", self.name)),
            logits: dir.join(format!("{}.logits", self.name)),
        }
    }
}

/// Files and recordings must match one to one.
#[test]
fn recordings_are_complete() {
    let fixtures = engine::conformance::fixtures(&data_dir().join("selections")).expect("the directory is readable");
    let mut found: Vec<_> = fixtures.into_iter().map(|f| f.name).collect();
    let mut expected: Vec<_> = RECORDINGS.iter().map(|r| r.name.to_owned()).collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
}

/// Results do not depend on the ubatch size. Without the selection, the error is a million times the limit,
/// so the comparison is meaningful.
#[test]
fn selections_match_recording() {
    const LIMIT: f64 = 1e-8;
    let mut failures = Vec::new();
    for recording in RECORDINGS {
        let recorded = recording.recorded();
        for n_ubatch in [96, 17, 1] {
            let mut params: CheckParams = exact();
            params.context.n_ubatch = n_ubatch;
            (params.context.n_threads, params.context.n_threads_batch) = (1, 1);
            let nmse = recorded.nmse(archs::ALL, &params).expect("the recording is readable");
            println!("{} with ubatch size {n_ubatch}: {nmse:.1e}", recording.name);
            if nmse.is_nan() || nmse > LIMIT {
                failures.push(format!("{} with ubatch size {n_ubatch}: {nmse:.1e}", recording.name));
            }
        }
        let all = recording.configuration(recording.all).file();
        let file = engine::gguf::GgufFile::from_bytes("all.gguf", &all).expect("a valid file");
        let model = Model::from_file(file, archs::ALL, &exact().load).expect("the model loads");
        let nmse = recorded
            .nmse_of(model, &exact().context)
            .expect("the recorded tokens can be decoded");
        println!("{} without selection: {nmse:.1e}", recording.name);
        if nmse.is_nan() || nmse < 1e6 * LIMIT {
            failures.push(format!("{} without selection: {nmse:.1e}", recording.name));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Blocks and pools depend on the positions of a sequence, but not on cells, other sequences, or sharing.
#[test]
fn selections_are_independent_of_cells() {
    for name in ["minimax-m3-4", "glm5-next-4", "glm5-next-3", "deepseek32-8"] {
        let recording = RECORDINGS
            .iter()
            .find(|r| r.name == name)
            .expect("the recording exists");
        let recorded = recording.recorded();
        let model = recorded.model(archs::ALL, &exact()).expect("the model loads");
        let a = engine::conformance::tokens(&recorded.recorded().expect("the recording is readable"));
        let b: Vec<_> = a.iter().rev().copied().collect();
        let new_context = || {
            context(&model, |p| {
                (p.n_ctx, p.n_seq_max, p.n_ubatch) = (256, 4, 17);
                (p.n_threads, p.n_threads_batch) = (1, 1);
            })
        };
        let agrees = |straight: &[Token], found: &[f32], what: &str| {
            let error = nmse(&decode_last(&mut new_context(), straight, 0, 0), found);
            assert!(error < 1e-10, "{name}, {what}: {error:.1e}");
        };
        let mut ctx = new_context();
        // Two interleaved sequences in a cache with holes left by a third sequence.
        let turns = |ctx: &mut Context, range: std::ops::Range<usize>, third: bool| {
            let mut batch = Batch::new();
            for i in range {
                batch.push(a[i], i, SeqSet::one(0), true);
                batch.push(b[i], i, SeqSet::one(1), true);
                if third {
                    batch.push(a[i / 2], i, SeqSet::one(2), false);
                }
            }
            ctx.decode(&batch).expect("the batch is decoded");
            let row = |i: usize| ctx.logits(i).expect("the token has output").to_vec();
            let n = batch.len() - if third { 1 } else { 0 };
            [row(n - 2), row(n - 1)]
        };
        turns(&mut ctx, 0..30, true);
        ctx.seq_rm(2, ..).expect("the sequence can be removed");
        let [of_a, of_b] = turns(&mut ctx, 30..61, false);
        agrees(&a[..61], &of_a, "the first sequence");
        agrees(&b[..61], &of_b, "the second sequence");
        // A copy diverges within a block and beyond.
        ctx.seq_cp(0, 3, ..).expect("the sequence can be copied");
        let parted = decode_last(&mut ctx, &b[61..80], 61, 3);
        agrees(&[&a[..61], &b[61..80]].concat(), &parted, "the copy");
        let gone_on = decode_last(&mut ctx, &a[61..80], 61, 0);
        agrees(&a[..80], &gone_on, "the copied sequence");
    }
}

/// Writes the model and the header of every recording, so that another engine can record its logits. Models are
/// `NAME.gguf` with seeded weights. Run it with `LLAMA_SELECTIONS=DIR cargo test -p llama-tests --test all write_rec --
/// --ignored`.
#[test]
#[ignore = "writes files"]
fn write_recordings() {
    let directory = std::env::var_os("LLAMA_SELECTIONS").expect("LLAMA_SELECTIONS names a directory");
    let directory = std::path::PathBuf::from(directory);
    for recording in RECORDINGS {
        let bytes = recording.configuration(&[]).file();
        let header = Gguf::parse_header(&bytes).expect("a valid file").data_offset();
        let write = |ending: &str, bytes: &[u8]| {
            let path = directory.join(format!("{}.{ending}", recording.name));
            std::fs::write(path, bytes).expect("the directory is writable");
        };
        write("gguf", &bytes);
        write("header.gguf", &bytes[..header]);
    }
}
