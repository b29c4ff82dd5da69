//! Sequence operations on recurrent states, alone and in hybrid models, checked through the logits of later
//! tokens.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use engine::context::{Batch, Context, ContextParams, DecodeError, MemoryError, SeqSet};
use engine::model::Model;
use engine::vocab::Token;
use tests::{context, decode_last, decode_one, model, nmse, tokens};

/// Purely recurrent models, alternating layers, hybrid layers, and states that contain tokens.
const NAMES: [&str; 6] = [
    "mamba-dense",
    "rwkv7-dense",
    "jamba-dense",
    "lfm2-dense",
    "falcon-h1-dense",
    "qwen4exp-moe",
];

fn recurrent_only(name: &str) -> bool {
    ["mamba-dense", "rwkv7-dense"].contains(&name)
}

/// Returns the logits of the last token of `t` in a separate context.
fn straight(m: &Arc<Model>, t: &[Token]) -> Vec<f32> {
    decode_last(&mut context(m, |_| {}), t, 0, 0)
}

fn assert_same(expected: &[f32], found: &[f32], what: &str) {
    let error = nmse(expected, found);
    assert!(error < 1e-9, "{what}: NMSE {error:.3e}");
}

fn each(change: impl Fn(&mut ContextParams) + Copy, test: impl Fn(&str, &Arc<Model>, &[Token], &mut Context)) {
    for name in NAMES {
        let (m, t) = (model(name), tokens(name));
        test(name, &m, &t, &mut context(&m, change));
    }
}

#[test]
fn copied_sequences_diverge() {
    each(
        |p| p.n_seq_max = 3,
        |name, m, t, ctx| {
            decode_last(ctx, &t[..30], 0, 0);
            ctx.seq_cp(0, 1, ..).unwrap();
            assert_eq!((ctx.n_past(0), ctx.n_past(1)), (30, 30));
            let a = decode_one(ctx, t[30], 30, 0);
            let b = decode_one(ctx, t[31], 30, 1);
            let c = decode_one(ctx, t[32], 31, 0);
            for (more, found) in [(&[30][..], &a), (&[31], &b), (&[30, 32], &c)] {
                let text: Vec<_> = t[..30].iter().copied().chain(more.iter().map(|&i| t[i])).collect();
                assert_same(&straight(m, &text), found, name);
            }
            assert_eq!(ctx.seq_cp(0, 1, ..), Err(MemoryError::Occupied { seq: 1 }));
            ctx.seq_keep(1).unwrap();
            assert_eq!((ctx.n_past(0), ctx.n_past(1)), (0, 31));
            ctx.clear();
            assert_eq!((ctx.n_past(1), ctx.n_used()), (0, 0));
        },
    );
}

/// Checkpoints exist for the last tokens of a decode and for the end of the previous one.
#[test]
fn truncation_restores_checkpoints() {
    each(
        |p| p.n_rollback = 3,
        |name, m, t, ctx| {
            decode_last(ctx, &t[..20], 0, 0);
            decode_last(ctx, &t[20..40], 20, 0);
            let n_used = ctx.n_used();
            let available = vec![20, 37, 38, 39, 40];
            let refused = MemoryError::StateForgotten {
                seq: 0,
                pos: 30,
                available,
            };
            assert_eq!(ctx.seq_rm(0, 30..), Err(refused), "{name}");
            assert_eq!(ctx.seq_rm(0, 5..10), Err(MemoryError::Inseparable { seq: 0 }), "{name}");
            assert_eq!(
                (ctx.n_past(0), ctx.n_used()),
                (40, n_used),
                "{name}: nothing was removed"
            );
            for at in [38, 37, 20] {
                ctx.seq_rm(0, at..).unwrap();
                assert_eq!(ctx.n_past(0), at, "{name}");
            }
            let found = decode_last(ctx, &t[50..60], 20, 0);
            let text: Vec<_> = t[..20].iter().chain(&t[50..60]).copied().collect();
            assert_same(&straight(m, &text), &found, name);
            ctx.seq_rm(0, ..).unwrap();
            assert_same(&straight(m, &t[..9]), &decode_last(ctx, &t[..9], 0, 0), name);
        },
    );
}

#[test]
fn failed_decode_keeps_states() {
    each(
        |p| (p.n_seq_max, p.n_ubatch) = (2, 4),
        |name, m, t, ctx| {
            decode_last(ctx, &t[..10], 0, 0);
            decode_last(ctx, &t[..5], 0, 1);
            let flag = Arc::new(AtomicBool::new(true));
            ctx.set_cancel(Some(flag));
            let mut batch = Batch::new();
            batch.push_prompt(&t[40..60], 10, 0);
            assert!(matches!(ctx.decode(&batch), Err(DecodeError::Cancelled)), "{name}");
            ctx.set_cancel(None);
            // The first ubatch succeeds. The second fails because its token belongs to two sequences with
            // different states.
            batch.clear();
            for i in 0..6 {
                batch.push(t[20 + i], 10 + i, SeqSet::one(0), false);
            }
            for i in 0..11 {
                batch.push(t[30 + i], 5 + i, SeqSet::one(1), false);
            }
            batch.push(t[0], 16, SeqSet::of([0, 1]), true);
            let error = ctx.decode(&batch).unwrap_err();
            let differ = MemoryError::StatesDiffer { first: 0, second: 1 };
            assert!(matches!(error, DecodeError::Memory(e) if e == differ), "{name}");
            assert_eq!((ctx.n_past(0), ctx.n_past(1)), (10, 5), "{name}");
            let found = decode_last(ctx, &t[10..20], 10, 0);
            assert_same(&straight(m, &t[..20]), &found, name);
            assert_same(&straight(m, &t[..15]), &decode_last(ctx, &t[5..15], 5, 1), name);
        },
    );
}

/// A prompt shared by two sequences is computed once.
#[test]
fn shared_tokens_have_one_state() {
    each(
        |p| p.n_seq_max = 2,
        |name, m, t, ctx| {
            let mut batch = Batch::new();
            for (i, &token) in t[..12].iter().enumerate() {
                batch.push(token, i, SeqSet::of([0, 1]), false);
            }
            batch.push(t[12], 12, SeqSet::one(0), true);
            batch.push(t[20], 12, SeqSet::one(1), true);
            batch.push(t[13], 13, SeqSet::one(0), true);
            ctx.decode(&batch).unwrap();
            let other: Vec<_> = t[..12].iter().chain([&t[20]]).copied().collect();
            assert_same(&straight(m, &t[..13]), ctx.logits(12).unwrap(), name);
            assert_same(&straight(m, &other), ctx.logits(13).unwrap(), name);
            assert_same(&straight(m, &t[..14]), ctx.logits(14).unwrap(), name);
        },
    );
}

#[test]
fn recurrent_models_have_no_context_limit() {
    for name in NAMES {
        let (m, t) = (model(name), tokens(name));
        let mut ctx = context(&m, |p| p.n_ctx = 8);
        let mut batch = Batch::new();
        let mut fed = 0;
        let error = t.chunks(4).find_map(|chunk| {
            batch.clear();
            batch.push_prompt(chunk, fed, 0);
            fed += chunk.len();
            ctx.decode(&batch).err()
        });
        assert_eq!(ctx.is_limited(), !recurrent_only(name), "{name}");
        if recurrent_only(name) {
            assert!(error.is_none(), "{name}");
            assert_same(&straight(&m, &t), ctx.logits(3).expect("the last token"), name);
        } else {
            assert!(
                matches!(error, Some(DecodeError::ContextFull { n_ctx: 8, .. })),
                "{name}"
            );
            assert_eq!(ctx.n_past(0), 8, "{name}");
        }
    }
}

#[test]
fn recurrent_positions_shift() {
    for name in ["mamba-dense", "falcon-h1-dense"] {
        let (m, t) = (model(name), tokens(name));
        let mut ctx = context(&m, |_| {});
        decode_last(&mut ctx, &t[..30], 0, 0);
        ctx.seq_add(0, .., 7).unwrap();
        assert_eq!(ctx.n_past(0), 37);
        assert_same(&straight(&m, &t[..31]), &decode_one(&mut ctx, t[30], 37, 0), name);
        assert_eq!(ctx.shift_context(0, 4), Err(MemoryError::Inseparable { seq: 0 }));
    }
}

/// Saves one of two sequences and restores it in a context of a different size that contains other sequences.
#[test]
fn single_sequences_are_saved_and_restored() {
    each(
        |p| p.n_seq_max = 2,
        |name, m, t, ctx| {
            decode_last(ctx, &t[50..70], 0, 0);
            decode_last(ctx, &t[..20], 0, 1);
            let mut state = Vec::new();
            ctx.save_seq(1, &mut state).unwrap();
            let mut other = context(m, |p| (p.n_seq_max, p.n_rollback, p.n_ctx) = (3, 2, 200));
            decode_last(&mut other, &t[30..50], 0, 0);
            decode_last(&mut other, &t[10..50], 0, 2);
            other.load_seq(2, &state).unwrap();
            assert_eq!((other.n_past(0), other.n_past(2)), (20, 20), "{name}");
            assert_same(&straight(m, &t[..21]), &decode_one(&mut other, t[20], 20, 2), name);
            assert_same(&straight(m, &t[30..51]), &decode_one(&mut other, t[50], 20, 0), name);
            let mut again = Vec::new();
            ctx.save_seq(1, &mut again).unwrap();
            assert_eq!(state, again, "{name}");
        },
    );
}
