//! Saved states: restoring continues exactly as without saving, and states that do not match are rejected.

use std::sync::Arc;

use engine::context::{Batch, Context, ContextParams, MemoryError, SeqSet, StateError};
use engine::model::Model;
use engine::vocab::Token;
use kernels::GgmlType;
use tests::{context, decode_last, decode_one, exact, fixture, model, nmse, published, tokens};

const NAMES: [&str; 6] = [
    "llama-dense",
    "llama-moe",
    "internlm2-dense",
    "qwen2-dense",
    "qwen3-dense",
    "gemma3-dense",
];

fn saved(ctx: &mut Context) -> Vec<u8> {
    let mut state = Vec::new();
    ctx.save_state(&mut state).expect("the state is saved");
    state
}

fn saved_seq(ctx: &mut Context, seq: usize) -> Vec<u8> {
    let mut state = Vec::new();
    ctx.save_seq(seq, &mut state).expect("the sequence is saved");
    state
}

/// Returns the logits of `tokens` decoded one by one.
fn continued(ctx: &mut Context, tokens: &[Token], pos: usize, seq: usize) -> Vec<f32> {
    let each = tokens.iter().enumerate();
    each.flat_map(|(i, &t)| decode_one(ctx, t, pos + i, seq)).collect()
}

/// Returns the logits of `t` from index `at`, in a separate context.
fn straight(m: &Arc<Model>, t: &[Token], at: usize) -> Vec<f32> {
    let mut ctx = context(m, |p| p.n_ctx = t.len());
    decode_last(&mut ctx, &t[..at], 0, 0);
    continued(&mut ctx, &t[at..], at, 0)
}

fn assert_same(expected: &[f32], found: &[f32], what: &str) {
    let error = nmse(expected, found);
    assert!(error < 1e-12, "{what}: NMSE {error:.3e}");
}

/// Decodes two sequences in alternation, so that their cells also alternate.
fn interleave(ctx: &mut Context, a: &[Token], b: &[Token]) {
    let mut batch = Batch::new();
    for i in 0..a.len() {
        batch.push(a[i], i, SeqSet::one(0), false);
        batch.push(b[i], i, SeqSet::one(1), false);
    }
    ctx.decode(&batch).expect("the batch is decoded");
}

#[test]
fn restored_state_is_bit_identical() {
    for name in NAMES {
        let (m, t) = (model(name), tokens(name));
        for ty in [GgmlType::F32, GgmlType::F16, GgmlType::Q8_0] {
            let typed = |p: &mut ContextParams| (p.type_k, p.type_v) = (ty, ty);
            let mut ctx = context(&m, typed);
            decode_last(&mut ctx, &t[..70], 0, 0);
            let state = saved(&mut ctx);
            let expected = continued(&mut ctx, &t[70..80], 70, 0);
            // Restores into a new context, and over the contents of a used one.
            let mut fresh = context(&m, typed);
            let mut used = context(&m, |p| {
                typed(p);
                p.n_seq_max = 2;
            });
            decode_last(&mut used, &t[20..50], 0, 0);
            decode_last(&mut used, &t[30..40], 0, 1);
            for ctx in [&mut fresh, &mut used] {
                ctx.load_state(&state).unwrap();
                assert_eq!((ctx.n_past(0), ctx.n_past(1), ctx.n_used()), (70, 0, 70));
                assert!(saved(ctx) == state, "{name} {ty}: saved again");
                assert_eq!(continued(ctx, &t[70..80], 70, 0), expected, "{name} {ty}");
            }
        }
    }
}

#[test]
fn sizes_of_contexts_may_differ() {
    for name in ["qwen3-dense", "gemma3-dense"] {
        let (m, t) = (model(name), tokens(name));
        let expected = straight(&m, &t[..90], 80);
        let mut ctx = context(&m, |p| p.n_ctx = 500);
        decode_last(&mut ctx, &t[..80], 0, 0);
        let state = saved(&mut ctx);
        let mut small = context(&m, |p| {
            p.n_ctx = 90;
            p.n_ubatch = 8;
        });
        small.load_state(&state).unwrap();
        assert_same(&expected, &continued(&mut small, &t[80..90], 80, 0), name);
        let mut tiny = context(&m, |p| p.n_ctx = 79);
        let error = tiny.load_state(&state).unwrap_err();
        assert!(
            matches!(
                error,
                StateError::NoRoom {
                    needed: 80,
                    free: 79,
                    n_cells: 79
                }
            ),
            "{error}"
        );
        assert_eq!(tiny.n_used(), 0);
    }
}

#[test]
fn one_sequence_moves_between_contexts() {
    for name in NAMES {
        let (m, t) = (model(name), tokens(name));
        let mut ctx = context(&m, |p| p.n_seq_max = 3);
        decode_last(&mut ctx, &t[..20], 0, 0);
        // Sequence 1 shares a prompt with sequence 0 and then diverges.
        ctx.seq_cp(0, 1, ..).unwrap();
        decode_last(&mut ctx, &t[40..50], 20, 1);
        decode_last(&mut ctx, &t[60..70], 20, 0);
        let state = saved_seq(&mut ctx, 1);
        let expected = continued(&mut ctx, &t[50..58], 30, 1);

        let mut other = context(&m, |p| p.n_seq_max = 3);
        interleave(&mut other, &t[..16], &t[30..46]);
        let neighbor = saved_seq(&mut other, 1);
        // Replaces sequence 0, whose cells alternate with those of sequence 1; then adds a third sequence.
        for seq in [0, 2] {
            other.load_seq(seq, &state).unwrap();
            assert_eq!((other.n_past(seq), other.n_past(1)), (30, 16));
            assert_same(&expected, &continued(&mut other, &t[50..58], 30, seq), name);
        }
        assert!(saved_seq(&mut other, 1) == neighbor, "{name}: sequence 1 is unchanged");
        assert_same(
            &straight(&m, &[&t[30..46], &t[..4]].concat(), 16),
            &continued(&mut other, &t[..4], 16, 1),
            name,
        );
    }
}

#[test]
fn state_restores_into_fragmented_cache() {
    for name in NAMES {
        let (m, t) = (model(name), tokens(name));
        let mut ctx = context(&m, |p| p.n_seq_max = 2);
        interleave(&mut ctx, &t[..40], &t[40..80]);
        let state = saved_seq(&mut ctx, 1);
        let expected = continued(&mut ctx, &t[80..88], 40, 1);
        ctx.seq_rm(1, ..).unwrap();
        // Leaves holes of one cell, and a hole of two cells where sequence 0 also lost a token.
        ctx.seq_rm(0, 39..).unwrap();
        ctx.load_seq(1, &state).unwrap();
        assert_eq!((ctx.n_past(0), ctx.n_past(1), ctx.n_used()), (39, 40, 79));
        assert_same(&expected, &continued(&mut ctx, &t[80..88], 40, 1), name);
        assert_same(
            &straight(&m, &t[..44], 39),
            &continued(&mut ctx, &t[39..44], 39, 0),
            name,
        );
    }
}

/// The window has 32 tokens, so cells are recycled many times.
#[test]
fn windows_restore_into_any_cells() {
    let (m, t) = (model("gemma3-dense"), tokens("gemma3-dense"));
    let long: Vec<Token> = t.iter().cycle().take(1000).copied().collect();
    let make = |n_ubatch: usize| {
        context(&m, |p| {
            p.n_ctx = 2048;
            p.n_ubatch = n_ubatch;
            p.n_seq_max = 2;
        })
    };
    let mut ctx = make(16);
    decode_last(&mut ctx, &long[..700], 0, 0);
    let state = saved_seq(&mut ctx, 0);
    let expected = continued(&mut ctx, &long[700..720], 700, 0);

    let mut other = make(300);
    decode_last(&mut other, &long[100..700], 0, 0);
    decode_last(&mut other, &long[50..400], 0, 1);
    for seq in [1, 0] {
        other.load_seq(seq, &state).unwrap();
        assert_eq!(other.n_past(seq), 700);
        assert_same(
            &expected,
            &continued(&mut other, &long[700..720], 700, seq),
            "full pool",
        );
    }

    // Cells before the window are restored if they fit, so that the sequence can still be truncated.
    let mut fresh = make(16);
    fresh.load_seq(0, &state).unwrap();
    fresh.seq_rm(0, 690..).unwrap();
    assert_same(
        &straight(&m, &long[..700], 690),
        &continued(&mut fresh, &long[690..700], 690, 0),
        "cut",
    );
    fresh.load_seq(0, &state).unwrap();
    assert_eq!(
        fresh.seq_rm(0, 300..),
        Err(MemoryError::WindowForgotten { seq: 0, pos: 300 })
    );
}

#[test]
fn shifted_positions_are_saved() {
    let (m, t) = (model("llama-dense"), tokens("llama-dense"));
    let mut ctx = context(&m, |_| {});
    decode_last(&mut ctx, &t[..40], 0, 0);
    ctx.seq_rm(0, 4..14).unwrap();
    ctx.seq_add(0, 14.., -10).unwrap();
    // The cached keys have not been rotated yet.
    let state = saved(&mut ctx);
    let expected = continued(&mut ctx, &t[40..50], 30, 0);
    let mut fresh = context(&m, |_| {});
    fresh.load_state(&state).unwrap();
    assert_same(&expected, &continued(&mut fresh, &t[40..50], 30, 0), "shifted");
}

/// The CPU cannot access the reference device's memory, so rows are copied through its buffers.
#[test]
fn state_moves_between_devices() {
    let t = tokens("llama-dense");
    let on = |device: &str| {
        let mut params = exact();
        tests::place_on(&mut params.load, device, usize::MAX);
        fixture("llama-dense").model(archs::ALL, &params).unwrap()
    };
    let (cpu, reference) = (on("cpu"), on("reference"));
    for (from, to) in [(&cpu, &reference), (&reference, &cpu), (&reference, &reference)] {
        let mut ctx = context(from, |_| {});
        decode_last(&mut ctx, &t[..30], 0, 0);
        let state = saved(&mut ctx);
        let mut other = context(to, |_| {});
        other.load_state(&state).unwrap();
        let found = continued(&mut other, &t[30..36], 30, 0);
        let error = nmse(&continued(&mut ctx, &t[30..36], 30, 0), &found);
        assert!(error < 1e-8, "NMSE {error:.3e}");
    }
}

#[test]
fn mismatched_state_is_rejected_without_changes() {
    let (m, t) = (model("llama-dense"), tokens("llama-dense"));
    let mut ctx = context(&m, |p| p.n_seq_max = 2);
    decode_last(&mut ctx, &t[..20], 0, 0);
    let (state, state_seq) = (saved(&mut ctx), saved_seq(&mut ctx, 0));
    decode_last(&mut ctx, &t[..10], 0, 1);

    let refused = |m: &Arc<Model>, change: &dyn Fn(&mut ContextParams)| {
        let mut ctx = context(m, change);
        decode_last(&mut ctx, &t[5..15], 0, 0);
        let before = saved(&mut ctx);
        let error = ctx.load_state(&state).unwrap_err().to_string();
        assert!(saved(&mut ctx) == before, "{error}: the context is unchanged");
        error
    };
    let cases = [
        (
            refused(&model("qwen3-dense"), &|_| {}),
            "a different model: architecture: expected qwen3, found llama",
        ),
        (
            refused(&model("llama-moe"), &|_| {}),
            "a different model: hyperparameters",
        ),
        (
            refused(&m, &|p| p.type_k = GgmlType::F16),
            "different settings: key type of layer 0: expected f16, found f32",
        ),
        (
            refused(&m, &|p| p.type_v = GgmlType::Q8_0),
            "different settings: value type of layer 0: expected q8_0, found f32",
        ),
        (
            refused(&m, &|p| p.rope_freq_base = Some(5e5)),
            "different settings: RoPE base frequency: expected 500000, found 10000",
        ),
        (
            refused(&m, &|p| p.n_ctx = 19),
            "needs 20 cells, but only 19 of 19 are free",
        ),
    ];
    for (error, expected) in cases {
        assert!(error.contains(expected), "{error}\nexpected {expected}");
    }
    // The other file has the same header but different weights.
    let mut other = exact();
    other.seed = 2;
    let tuned = fixture("llama-dense").model(archs::ALL, &other).unwrap();
    let error = refused(&tuned, &|_| {});
    assert!(error.contains("a different model: weights"), "{error}");

    let two = saved(&mut ctx);
    let mut single = context(&m, |_| {});
    let error = single.load_state(&two).unwrap_err().to_string();
    assert_eq!(error, "invalid sequence 1: the context has 1 sequences");
    let error = single.load_seq(1, &state_seq).unwrap_err().to_string();
    assert_eq!(error, "invalid sequence 1: the context has 1 sequences");
    let error = single.save_seq(1, &mut Vec::new()).unwrap_err().to_string();
    assert_eq!(error, "invalid sequence 1: the context has 1 sequences");
    let error = single.load_seq(0, &state).unwrap_err().to_string();
    assert_eq!(error, "wrong state scope: expected one sequence, found a whole context");
    let error = single.load_state(&state_seq).unwrap_err().to_string();
    assert_eq!(error, "wrong state scope: expected a whole context, found one sequence");
    assert_eq!(single.n_used(), 0);
}

#[test]
fn damaged_state_is_rejected_without_changes() {
    let (m, t) = (model("gemma3-dense"), tokens("gemma3-dense"));
    let mut ctx = context(&m, |_| {});
    decode_last(&mut ctx, &t[..5], 0, 0);
    let mut state = saved(&mut ctx);
    for len in 0..state.len() {
        let error = ctx.load_state(&state[..len]).unwrap_err();
        let is_told = match error {
            StateError::NotAState { .. } => len < 8,
            StateError::Malformed { .. } => (8..24).contains(&len),
            StateError::Length { expected, found } => (expected, found) == (state.len() as u64, len as u64),
            _ => false,
        };
        assert!(is_told, "{len} of {} bytes: {error}", state.len());
    }
    // Flips bits in all of the first 400 bytes, and at intervals after them.
    let step = state.len() / 400;
    for at in (0..400).chain((400..state.len()).step_by(step)) {
        let bit = 1 << (at % 8);
        state[at] ^= bit;
        assert!(ctx.load_state(&state).is_err(), "byte {at}");
        state[at] ^= bit;
    }
    state.push(0);
    assert!(matches!(ctx.load_state(&state), Err(StateError::Length { .. })));
    state.pop();
    assert!(saved(&mut ctx) == state, "the context is unchanged");
}

#[test]
fn session_file_contains_tokens() {
    let (m, t) = (model("qwen2-dense"), tokens("qwen2-dense"));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("chat.session");
    let mut ctx = context(&m, |p| p.n_seq_max = 2);
    std::fs::write(&path, "not a session").unwrap();
    let error = ctx.load_session(&path).unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("{}: not a saved state", path.display())),
        "{error}"
    );

    decode_last(&mut ctx, &t[..25], 0, 0);
    ctx.save_session(&path, &t[..26]).unwrap();
    let seq_path = dir.path().join("one");
    ctx.save_seq_session(0, &seq_path, &t[..25]).unwrap();
    let expected = continued(&mut ctx, &t[25..30], 25, 0);
    let names: Vec<_> = std::fs::read_dir(&dir)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(names.len(), 2, "temporary files remain: {names:?}");

    let mut fresh = context(&m, |p| p.n_seq_max = 2);
    assert_eq!(fresh.load_session(&path).unwrap(), &t[..26]);
    assert_eq!(continued(&mut fresh, &t[25..30], 25, 0), expected);
    assert_eq!(fresh.load_seq_session(1, &seq_path).unwrap(), &t[..25]);
    assert_same(&expected, &continued(&mut fresh, &t[25..30], 25, 1), "one sequence");

    // Loading must fail for truncated, extended, and missing files.
    let whole = std::fs::read(&path).unwrap();
    for bytes in [
        &whole[..whole.len() - 1],
        &[&whole[..], b"\n"].concat(),
        &whole[..20],
        b"",
    ] {
        std::fs::write(&path, bytes).unwrap();
        let error = fresh.load_session(&path).unwrap_err();
        assert!(matches!(error, StateError::InFile { .. }), "{error}");
    }
    for nowhere in [dir.path().to_owned(), dir.path().join("missing")] {
        assert!(
            fresh
                .load_session(&nowhere)
                .unwrap_err()
                .to_string()
                .contains("cannot read the file")
        );
    }
    let error = ctx.save_session(dir.path().join("no/such/directory"), &[]).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("no/such/directory: cannot create the temporary file"),
        "{error}"
    );
    // The path is a directory: saving fails and leaves no temporary files.
    assert!(ctx.save_session(dir.path(), &[]).is_err());
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 2);
}

/// Compares greedy output of published models with and without a restored session.
#[test]
#[ignore = "downloads two models (340 MB) and takes a minute"]
fn restored_session_of_real_models_matches_text() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("session");
    let params = ContextParams {
        n_ctx: 256,
        ..ContextParams::default()
    };
    for file in [published::SMOLLM2, published::GEMMA3] {
        let m = published::model(file);
        let text = "The first thing that you should know about the sea is";
        let prompt = m.vocab().tokenize(text, true, false);
        let mut ctx = Context::new(m.clone(), &params).unwrap();
        let mut tokens = greedy(&mut ctx, &prompt, 0, 16);
        tokens.pop();
        ctx.save_session(&path, &tokens).unwrap();
        let expected = greedy(&mut ctx, &tokens, tokens.len() - 1, 16);
        let mut other = Context::new(m.clone(), &params).unwrap();
        assert_eq!(other.load_session(&path).unwrap(), tokens);
        let found = greedy(&mut other, &tokens, tokens.len() - 1, 16);
        assert_eq!(found, expected, "{file}");
        println!("{file}: {}", m.vocab().detokenize(&found, false, true));
    }
}

/// Truncates the context to `from`, decodes `tokens` from there, and appends `n` greedy tokens.
fn greedy(ctx: &mut Context, tokens: &[Token], from: usize, n: usize) -> Vec<Token> {
    ctx.seq_rm(0, from..).unwrap();
    let mut all = tokens.to_vec();
    let mut next = from;
    for _ in 0..n {
        let logits = decode_last(ctx, &all[next..], next, 0);
        next = all.len();
        let best = (0..logits.len())
            .max_by(|&a, &b| logits[a].total_cmp(&logits[b]))
            .unwrap();
        all.push(best as Token);
    }
    all
}
