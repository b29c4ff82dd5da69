//! Sequence operations of the KV cache, checked through the logits of later tokens.

use engine::context::{Batch, DecodeError, MemoryError, SeqSet};
use tests::{context, decode_last, decode_one, model, nmse, tokens};

#[test]
fn truncated_sequence_matches_shorter_one() {
    let (m, t) = (model("llama-dense"), tokens("llama-dense"));
    let mut ctx = context(&m, |_| {});
    decode_last(&mut ctx, &t[..40], 0, 0);
    ctx.seq_rm(0, 20..).unwrap();
    assert_eq!(ctx.n_past(0), 20);
    let again = decode_last(&mut ctx, &t[60..70], 20, 0);
    let mut fresh = context(&m, |_| {});
    let straight: Vec<u32> = t[..20].iter().chain(&t[60..70]).copied().collect();
    let expected = decode_last(&mut fresh, &straight, 0, 0);
    assert!(nmse(&expected, &again) < 1e-10);
}

#[test]
fn copied_sequences_diverge() {
    let (m, t) = (model("qwen3-dense"), tokens("qwen3-dense"));
    let mut ctx = context(&m, |p| p.n_seq_max = 3);
    decode_last(&mut ctx, &t[..30], 0, 0);
    ctx.seq_cp(0, 1, ..).unwrap();
    assert_eq!(ctx.n_used(), 30, "sharing needs no cells");
    let a = decode_one(&mut ctx, t[30], 30, 0);
    let b = decode_one(&mut ctx, t[31], 30, 1);
    let a2 = decode_one(&mut ctx, t[32], 31, 0);
    for (first, last, found) in [(30, None, &a), (31, None, &b), (30, Some(32), &a2)] {
        let mut fresh = context(&m, |_| {});
        let straight: Vec<u32> = t[..30]
            .iter()
            .chain([&t[first]])
            .chain(last.map(|i: usize| &t[i]))
            .copied()
            .collect();
        assert!(nmse(&decode_last(&mut fresh, &straight, 0, 0), found) < 1e-10);
    }
    ctx.seq_keep(1).unwrap();
    assert_eq!((ctx.n_past(0), ctx.n_past(1), ctx.n_used()), (0, 31, 31));
}

/// After removing the first tokens and shifting positions, the remaining tokens must look as if decoded from
/// position 0. This is exact in the first layer; later layers have attended to the removed tokens, as in
/// every engine that shifts.
#[test]
fn shifted_positions_rotate_the_keys() {
    let (m, t) = (model("llama-dense"), tokens("llama-dense"));
    // Shifting forth and back without removing tokens must change nothing.
    let mut ctx = context(&m, |_| {});
    decode_last(&mut ctx, &t[..30], 0, 0);
    ctx.seq_add(0, .., 7).unwrap();
    assert_eq!(ctx.n_past(0), 37);
    let moved = decode_one(&mut ctx, t[30], 37, 0);
    let mut fresh = context(&m, |_| {});
    let expected = decode_last(&mut fresh, &t[..31], 0, 0);
    assert!(
        nmse(&expected, &moved) < 1e-8,
        "RoPE depends on distances only: {:.3e}",
        nmse(&expected, &moved)
    );
    ctx.seq_rm(0, 37..).unwrap();
    ctx.seq_add(0, .., -7).unwrap();
    let back = decode_one(&mut ctx, t[30], 30, 0);
    assert!(nmse(&expected, &back) < 1e-8);
}

/// RoPE depends on distances only: without the older half, later logits do not depend on whether positions
/// were shifted.
#[test]
fn shifted_context_matches_cut_context() {
    let (m, t) = (model("llama-dense"), tokens("llama-dense"));
    let mut shifted = context(&m, |_| {});
    let before = decode_last(&mut shifted, &t[..40], 0, 0);
    let mut cut = context(&m, |_| {});
    assert_eq!(before, decode_last(&mut cut, &t[..40], 0, 0));
    assert_eq!(shifted.shift_context(0, 0), Ok(20));
    cut.seq_rm(0, ..20).unwrap();
    assert_eq!((shifted.n_past(0), cut.n_past(0)), (20, 40));
    for i in 40..50 {
        let expected = decode_one(&mut cut, t[i], i, 0);
        let found = decode_one(&mut shifted, t[i], i - 20, 0);
        assert!(nmse(&expected, &found) < 1e-8, "{:.3e}", nmse(&expected, &found));
    }
}

#[test]
fn context_shift_keeps_prefix() {
    let (m, t) = (model("llama-dense"), tokens("llama-dense"));
    let mut ctx = context(&m, |p| {
        p.n_ctx = 32;
        p.n_seq_max = 2;
    });
    let mut by_hand = context(&m, |p| p.n_ctx = 32);
    for &token in t.iter().cycle().take(150) {
        let pos = ctx.n_past(0);
        if pos == 32 {
            assert_eq!(ctx.shift_context(0, 4), Ok(14));
            by_hand.seq_rm(0, 4..18).unwrap();
            by_hand.seq_add(0, 18.., -14).unwrap();
            assert_eq!((ctx.n_past(0), ctx.n_used()), (18, 18));
        }
        let pos = ctx.n_past(0);
        assert_eq!(
            decode_one(&mut ctx, token, pos, 0),
            decode_one(&mut by_hand, token, pos, 0)
        );
    }
    // Tests a sequence with nothing to drop, an empty sequence, and cells that another sequence shares.
    let n_past = ctx.n_past(0);
    assert_eq!(ctx.shift_context(0, n_past - 1), Ok(0));
    assert_eq!(ctx.shift_context(1, 0), Ok(0));
    assert_eq!(ctx.shift_context(9, usize::MAX), Ok(0));
    ctx.seq_cp(0, 1, ..).unwrap();
    assert_eq!(ctx.shift_context(0, 4), Err(MemoryError::Shared { seq: 0 }));
    assert_eq!(
        (ctx.n_past(0), ctx.n_past(1)),
        (n_past, n_past),
        "a rejected shift changes nothing"
    );
}

/// Fixtures whose keys cannot be shifted: recurrent states, token groups, learned positions, and weighted
/// norms after RoPE.
const UNMOVABLE: [&str; 30] = [
    "arwkv7-dense",
    "bailingmoe3-moe",
    "deepseek4-moe",
    "falcon-h1-dense",
    "glm5-next-moe",
    "gpt2-dense",
    "granitehybrid-dense",
    "hunyuan-dense-dense",
    "hunyuan-moe-moe",
    "hunyuan_vl-dense",
    "jamba-dense",
    "kimi-k3-moe",
    "kimi-linear-moe",
    "lfm2-dense",
    "lfm2moe-moe",
    "maincoder-dense",
    "mamba-dense",
    "mamba2-dense",
    "minimax-01-moe",
    "mpt-dense",
    "nemotron_h-dense",
    "nemotron_h_moe-dense",
    "plamo2-dense",
    "qwen35-dense",
    "qwen35moe-moe",
    "qwen3next-moe",
    "qwen4exp-moe",
    "rwkv6-dense",
    "rwkv7-dense",
    "starcoder-dense",
];

/// Covers keys without positions, partial and multi-axis RoPE, and mixes. After shifting a whole sequence, distances
/// are unchanged, so the logits must not change either. All other models reject shifts.
#[test]
fn every_fixture_shifts_or_rejects_shift() {
    let mut refused = Vec::new();
    for name in tests::fixture_names() {
        let m = model(&name);
        if m.arch().bidirectional {
            continue;
        }
        let t = tokens(&name);
        let mut ctx = context(&m, |_| {});
        if ctx.check_shift().is_err() {
            decode_last(&mut ctx, &t[..8], 0, 0);
            assert!(ctx.shift_context(0, 2).is_err(), "{name}");
            refused.push(name);
            continue;
        }
        decode_last(&mut ctx, &t[..20], 0, 0);
        let mut plain = context(&m, |_| {});
        decode_last(&mut plain, &t[..20], 0, 0);
        // Shifts forth and back, so that both rotations are computed.
        ctx.seq_add(0, .., 7).unwrap();
        let far = decode_one(&mut ctx, t[20], 27, 0);
        ctx.seq_add(0, .., -7).unwrap();
        let near = decode_one(&mut plain, t[20], 20, 0);
        let (far_2, near_2) = (decode_one(&mut ctx, t[21], 21, 0), decode_one(&mut plain, t[21], 21, 0));
        for (what, near, far) in [("moved away", near, far), ("and back", near_2, far_2)] {
            let error = nmse(&near, &far);
            assert!(error < 1e-8, "{name}, {what}: {error:.2e}");
        }
    }
    assert_eq!(refused, UNMOVABLE);
}

#[test]
fn window_uses_few_cells_and_reports_forgotten_positions() {
    let (m, t) = (model("gemma3-dense"), tokens("gemma3-dense"));
    // The window is 32 tokens, but each step needs 256 cells, so no memory is saved. The ring buffer code is
    // the same as for large models.
    let mut ctx = context(&m, |p| {
        p.n_ctx = 1024;
        p.n_ubatch = 16;
    });
    let long: Vec<u32> = t.iter().cycle().take(700).copied().collect();
    decode_last(&mut ctx, &long, 0, 0);
    assert_eq!(
        ctx.seq_rm(0, 300..),
        Err(MemoryError::WindowForgotten { seq: 0, pos: 300 })
    );
    assert_eq!(ctx.n_past(0), 700, "a rejected cut changes nothing");
    ctx.seq_rm(0, 690..).unwrap();
    let cut = decode_one(&mut ctx, t[3], 690, 0);
    let mut fresh = context(&m, |p| p.n_ctx = 1024);
    let straight: Vec<u32> = long[..690].iter().chain([&t[3]]).copied().collect();
    assert!(nmse(&decode_last(&mut fresh, &straight, 0, 0), &cut) < 1e-8);
}

#[test]
fn full_context_error_names_cells_and_changes_nothing() {
    let (m, t) = (model("llama-dense"), tokens("llama-dense"));
    let mut ctx = context(&m, |p| p.n_ctx = 32);
    let expected = decode_last(&mut ctx, &t[..20], 0, 0);
    let mut batch = Batch::new();
    batch.push_prompt(&t[20..40], 20, 0);
    let error = ctx.decode(&batch).unwrap_err();
    assert!(
        matches!(
            error,
            DecodeError::ContextFull {
                needed: 20,
                used: 20,
                n_ctx: 32
            }
        ),
        "{error}"
    );
    assert_eq!(ctx.n_past(0), 20);
    ctx.seq_rm(0, 19..).unwrap();
    assert!(nmse(&expected, &decode_one(&mut ctx, t[19], 19, 0)) < 1e-10);
}

#[test]
fn invalid_batches_are_rejected() {
    let m = model("llama-dense");
    let mut ctx = context(&m, |_| {});
    let mut try_token = |token, pos, seqs| {
        let mut batch = Batch::new();
        batch.push(token, pos, seqs, true);
        ctx.decode(&batch).unwrap_err().to_string()
    };
    let one = SeqSet::one(0);
    assert_eq!(
        try_token(128, 0, one),
        "invalid token 128 at index 0: the vocabulary has 128 tokens"
    );
    assert_eq!(
        try_token(u32::MAX, 0, one),
        "invalid token 4294967295 at index 0: the vocabulary has 128 tokens"
    );
    assert_eq!(
        try_token(0, 1, one),
        "invalid position in sequence 0 at index 0: expected 0, found 1"
    );
    assert_eq!(
        try_token(0, 0, SeqSet::one(1)),
        "token at index 0 has no sequence id below 1"
    );
    assert_eq!(
        try_token(0, 0, SeqSet::default()),
        "token at index 0 has no sequence id below 1"
    );
    assert_eq!(ctx.decode(&Batch::new()).unwrap_err().to_string(), "the batch is empty");
    assert_eq!(ctx.n_used(), 0);
}
