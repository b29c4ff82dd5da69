//! Many sequences in one context: each has the logits of a separate context, up to rounding in larger
//! batches. While a sequence does not share pages, its results are bit-identical regardless of other
//! sequences and page locations.

use std::sync::Arc;

use engine::context::{Batch, Context, ContextParams, MAX_SEQUENCES, SeqSet};
use engine::model::Model;
use tests::{context, model, nmse, tokens};

const N_VOCAB: usize = 128;

/// Returns a different text for each sequence.
fn text(seq: usize, n: usize) -> Vec<u32> {
    (0..n)
        .map(|i| ((i * 7 + seq * 31 + i * seq) % N_VOCAB) as u32)
        .collect()
}

fn context_for(m: &Arc<Model>, n_seqs: usize, n_ctx: usize) -> Context {
    context(m, |p: &mut ContextParams| {
        (p.n_seq_max, p.n_ctx, p.n_batch, p.n_ubatch) = (n_seqs, n_ctx, 512, 256);
    })
}

/// Decodes the tokens at `from..to` of all sequences in lockstep and returns the logits of the last ones.
fn lockstep(ctx: &mut Context, texts: &[(usize, Vec<u32>)], from: usize, to: usize) -> Vec<Vec<f32>> {
    let mut batch = Batch::new();
    for pos in from..to {
        batch.clear();
        for (seq, text) in texts {
            batch.push(text[pos], pos, SeqSet::one(*seq), true);
        }
        ctx.decode(&batch).unwrap();
    }
    (0..texts.len()).map(|i| ctx.logits(i).unwrap().to_vec()).collect()
}

/// Returns the logits of the last token of a text, decoded token by token in a separate context.
fn alone(m: &Arc<Model>, text: &[u32]) -> Vec<f32> {
    let mut ctx = context_for(m, 1, 1024);
    lockstep(&mut ctx, &[(0, text.to_vec())], 0, text.len()).remove(0)
}

fn assert_same_as_alone(m: &Arc<Model>, text: &[u32], found: &[f32], what: &str) {
    let error = nmse(&alone(m, text), found);
    assert!(error < 1e-9, "{what}: {error:.2e}");
}

#[test]
fn lockstep_sequences_match_single_ones() {
    for (name, n_seqs, n_tokens) in [
        ("llama-dense", 2usize, 20usize),
        ("llama-dense", 7, 150),
        ("llama-dense", 65, 20),
        ("llama-dense", 200, 20),
        ("llama-dense", MAX_SEQUENCES, 3),
        ("gemma3-dense", 20, 200),
        ("gpt-oss-moe", 9, 150),
        ("mamba2-dense", 9, 40),
        ("falcon-h1-dense", 9, 70),
        ("deepseek2-moe", 9, 70),
        ("qwen3moe-moe", 9, 70),
    ] {
        let m = model(name);
        let mut ctx = context_for(&m, n_seqs, n_seqs * n_tokens.next_multiple_of(64));
        let texts: Vec<_> = (0..n_seqs).map(|seq| (seq, text(seq, n_tokens))).collect();
        let found = lockstep(&mut ctx, &texts, 0, n_tokens);
        // Only some sequences, because separate runs are slow.
        for seq in (0..n_seqs).step_by(n_seqs.div_ceil(4)).chain([n_seqs - 1]) {
            let what = format!("{name}: sequence {seq} of {n_seqs}");
            assert_same_as_alone(&m, &texts[seq].1, &found[seq], &what);
        }
    }
}

/// Decodes sequences alone and together, where the tokens of other sequences differ and pages move. MoE
/// models are excluded, because expert batches depend on all tokens.
#[test]
fn sequence_is_bit_identical_regardless_of_others() {
    for name in ["llama-dense", "gemma3-dense", "mamba2-dense", "minicpm3-dense"] {
        let m = model(name);
        let (n_seqs, n_tokens) = (7, 150);
        let texts: Vec<_> = (0..n_seqs).map(|seq| (seq, text(seq, n_tokens))).collect();
        let mut ctx = context_for(&m, n_seqs + 1, (n_seqs + 1) * 192);
        let expected = lockstep(&mut ctx, &texts, 0, n_tokens);
        for kept in [0, 4, 6] {
            let mut ctx = context_for(&m, n_seqs + 1, (n_seqs + 1) * 192);
            lockstep(&mut ctx, &[(n_seqs, text(99, 3))], 0, 3);
            let others = (0..n_seqs).map(|seq| (seq, text(if seq == kept { seq } else { seq + 50 }, n_tokens)));
            let found = lockstep(&mut ctx, &others.collect::<Vec<_>>(), 0, n_tokens);
            assert!(found[kept] == expected[kept], "{name}: sequence {kept}");
        }
    }
}

/// If pages are scarce, sequences share them without changing their results.
#[test]
fn sequences_share_pages_when_scarce() {
    for name in [
        "llama-dense",
        "gemma3-dense",
        "gpt-oss-moe",
        "falcon-h1-dense",
        "deepseek2-moe",
    ] {
        let m = model(name);
        // 20 sequences of 16 tokens in 5 pages.
        let mut ctx = context_for(&m, 20, 320);
        let texts: Vec<_> = (0..20).map(|seq| (seq, text(seq, 16))).collect();
        let found = lockstep(&mut ctx, &texts, 0, 16);
        for (seq, text) in &texts {
            assert_same_as_alone(&m, text, &found[*seq], &format!("{name}: sequence {seq}"));
        }
    }
}

/// A prompt shared by many sequences is stored once; forks, and forks of forks, diverge independently.
#[test]
fn forks_of_shared_prompt_diverge() {
    let m = model("llama-dense");
    let prompt: Vec<u32> = tokens("llama-dense").iter().cycle().take(100).copied().collect();
    let mut ctx = context_for(&m, 100, 100 * 64 + 192);
    let mut batch = Batch::new();
    batch.push_prompt(&prompt, 0, 0);
    ctx.decode(&batch).unwrap();
    (1..60).for_each(|seq| ctx.seq_cp(0, seq, ..).unwrap());
    assert_eq!(ctx.n_used(), 100, "sharing needs no cells");
    let grown = |seq: usize, n: usize| [&prompt[..], &text(seq, n)].concat();
    let texts: Vec<_> = (0..60).map(|seq| (seq, grown(seq, 10))).collect();
    lockstep(&mut ctx, &texts, 100, 105);
    // Forks of forks: sequence 60 + i shares its past with i and then diverges.
    (0..40).for_each(|i| ctx.seq_cp(i, 60 + i, ..).unwrap());
    let mut all = texts.clone();
    all.extend((0..40).map(|i| {
        let own = [&texts[i].1[..105], &text(90 + i, 5)].concat();
        (60 + i, own)
    }));
    let found = lockstep(&mut ctx, &all, 105, 110);
    for seq in [0, 1, 59, 60, 61, 99] {
        assert_same_as_alone(&m, &all[seq].1, &found[seq], &format!("sequence {seq}"));
    }
    // Removing sequences must not affect cells that others share.
    (0..99).for_each(|seq| ctx.seq_rm(seq, ..).unwrap());
    assert_eq!((ctx.n_past(98), ctx.n_past(99), ctx.n_used()), (0, 110, 110));
}

/// Tests tokens that several sequences with ids above 64 share.
#[test]
fn shared_token_is_visible_to_all_sequences() {
    let m = model("llama-dense");
    let mut ctx = context_for(&m, MAX_SEQUENCES, 512);
    let prompt = text(3, 30);
    let mut batch = Batch::new();
    for (pos, &token) in prompt.iter().enumerate() {
        batch.push(token, pos, SeqSet::ALL, false);
    }
    ctx.decode(&batch).unwrap();
    assert_eq!(ctx.n_used(), 30);
    let own = |seq: usize| (seq, [&prompt[..], &[seq as u32 % 128]].concat());
    let texts: Vec<_> = [0, 63, 64, 200, 255].map(own).to_vec();
    let found = lockstep(&mut ctx, &texts, 30, 31);
    for ((seq, text), found) in texts.iter().zip(&found) {
        assert_same_as_alone(&m, text, found, &format!("sequence {seq}"));
    }
    // The state of all sequences can be restored in another context.
    let (mut state, mut other) = (Vec::new(), context_for(&m, MAX_SEQUENCES, 512));
    ctx.save_state(&mut state).unwrap();
    other.load_state(&state).unwrap();
    assert_eq!((other.n_past(254), other.n_past(255), other.n_used()), (30, 31, 35));
}
