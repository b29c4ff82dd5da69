//! Batches with several sequences: an invalid sequence does not affect the others, and alternating steps do
//! not rebuild graphs.

use std::sync::Arc;

use engine::adapter::ControlVector;
use engine::context::{Batch, Context, DecodeError, MemoryError, SeqSet};
use engine::gguf::{GgufFile, GgufWriter};
use engine::model::Model;
use engine::vocab::Token;
use kernels::GgmlType;
use tests::{context, decode_last, decode_one, model, tokens};

/// Models that together use every kind of memory.
const KINDS: [&str; 5] = [
    "llama-dense",
    "gemma3-dense",
    "mamba-dense",
    "falcon-h1-dense",
    "deepseek4-moe",
];

/// Tokens of a batch in insertion order.
#[derive(Default)]
struct Draft(Vec<(Token, usize, SeqSet)>);

impl Draft {
    fn run(&mut self, tokens: &[Token], pos: usize, seq: usize) -> &mut Draft {
        let placed = tokens.iter().enumerate().map(|(i, &t)| (t, pos + i, SeqSet::one(seq)));
        self.0.extend(placed);
        self
    }

    /// Interleaves the sequences, one token at a time.
    fn interleaved(&mut self) -> &mut Draft {
        self.0.sort_by_key(|&(_, pos, _)| pos);
        self
    }

    fn without(&self, gone: SeqSet) -> Draft {
        Draft(self.0.iter().copied().filter(|t| !t.2.intersects(gone)).collect())
    }

    fn batch(&self) -> Batch {
        let mut batch = Batch::new();
        self.0.iter().for_each(|&(t, pos, seqs)| batch.push(t, pos, seqs, true));
        batch
    }
}

fn of(seqs: &[usize]) -> SeqSet {
    seqs.iter().fold(SeqSet::default(), |all, &s| all.union(SeqSet::one(s)))
}

/// Creates two contexts in the same state: five tokens in each of four sequences.
fn twins(m: &Arc<Model>, t: &[Token]) -> [Context; 2] {
    [(); 2].map(|()| {
        let mut ctx = context(m, |p| (p.n_seq_max, p.n_outputs_max, p.n_ubatch) = (4, 64, 16));
        (0..4).for_each(|seq| drop(decode_last(&mut ctx, &t[seq..seq + 5], 0, seq)));
        ctx
    })
}

/// Decodes a draft in which the sequences `rejected` are invalid, and the draft without them; asserts that
/// the logits are bit-identical.
fn assert_rejects(name: &str, draft: &Draft, rejected: SeqSet, is_right: impl Fn(&DecodeError) -> bool) {
    let (m, t) = (model(name), tokens(name));
    let [mut ctx, mut twin] = twins(&m, &t);
    ctx.decode(&draft.batch()).unwrap();
    let found = ctx.rejected();
    assert_eq!(found.len(), 1, "{name}: {found:?}");
    assert_eq!(found[0].seqs, rejected, "{name}");
    assert!(is_right(&found[0].error), "{name}: {}", found[0].error);
    let rest = draft.without(rejected);
    twin.decode(&rest.batch()).unwrap();
    assert!(twin.rejected().is_empty());
    let mut expected = 0..;
    for (i, &(_, _, seqs)) in draft.0.iter().enumerate() {
        if seqs.intersects(rejected) {
            assert!(ctx.logits(i).is_none(), "{name}: token {i} was not computed");
        } else {
            assert_eq!(
                ctx.logits(i),
                twin.logits(expected.next().unwrap()),
                "{name}: token {i}"
            );
        }
    }
    for seq in 0..4 {
        assert_eq!(ctx.n_past(seq), twin.n_past(seq), "{name}");
    }
    // Rejected sequences continue from their previous state.
    for seq in rejected.iter() {
        assert_eq!(ctx.n_past(seq), 5, "{name}");
        let [ctx, twin] = [&mut ctx, &mut twin].map(|c| decode_one(c, t[20], 5, seq));
        assert_eq!(ctx, twin, "{name}: sequence {seq}");
    }
}

#[test]
fn unknown_token_rejects_only_its_sequence() {
    for name in KINDS {
        let t = tokens(name);
        let mut draft = Draft::default();
        draft.run(&t[10..16], 5, 0).run(&t[20..24], 5, 1).run(&t[30..35], 5, 2);
        draft.interleaved();
        let bad = draft.0.iter().position(|t| (t.1, t.2) == (7, of(&[1]))).unwrap();
        draft.0[bad].0 = Token::MAX;
        assert_rejects(
            name,
            &draft,
            of(&[1]),
            |e| matches!(e, DecodeError::Token { index, .. } if *index == bad),
        );
    }
}

#[test]
fn wrong_position_rejects_only_its_sequence() {
    for name in KINDS {
        let t = tokens(name);
        let mut draft = Draft::default();
        draft.run(&t[10..12], 5, 0).run(&t[20..24], 6, 3).run(&t[30..35], 5, 2);
        assert_rejects(name, &draft, of(&[3]), |e| {
            matches!(
                e,
                DecodeError::Position {
                    index: 2,
                    seq: 3,
                    expected: 5,
                    found: 6
                }
            )
        });
    }
}

#[test]
fn unlearned_position_rejects_only_its_sequence() {
    for name in ["gpt2-dense", "bert-dense"] {
        let (m, t) = (model(name), tokens(name));
        let n = m.max_positions().expect("the model has learned positions");
        let of_table: Vec<Token> = t.iter().copied().cycle().take(n + 1).collect();
        let [mut ctx, mut twin] = [(); 2].map(|()| {
            context(&m, |p| {
                (p.n_ctx, p.n_batch, p.n_seq_max, p.n_outputs_max) = (3 * n, 3 * n, 3, 8);
            })
        });
        let mut batch = Batch::new();
        batch.push_prompt(&of_table, 0, 0);
        batch.push_prompt(&of_table[..n], 0, 1);
        batch.push_prompt(&t[..4], 0, 2);
        ctx.decode(&batch).unwrap();
        let [rejected] = ctx.rejected() else {
            panic!("{name}: {:?}", ctx.rejected());
        };
        assert_eq!(rejected.seqs, SeqSet::one(0));
        assert_eq!(
            rejected.error.to_string(),
            format!("position {n} at index {n} exceeds the {n} positions of the model")
        );
        let mut rest = Batch::new();
        rest.push_prompt(&of_table[..n], 0, 1);
        rest.push_prompt(&t[..4], 0, 2);
        twin.decode(&rest).unwrap();
        assert!(twin.rejected().is_empty(), "{name}: all learned positions are accepted");
        for i in [n - 1, n + 3] {
            assert!(twin.logits(i).is_some());
            assert_eq!(ctx.logits(n + 1 + i), twin.logits(i), "{name}");
        }
    }
}

#[test]
fn invalid_sequence_keeps_others_encoded() {
    let (m, t) = (model("t5-dense"), tokens("t5-dense"));
    let [mut ctx, mut twin] = [(); 2].map(|()| context(&m, |p| p.n_seq_max = 3));
    let (mut batch, mut rest) = (Batch::new(), Batch::new());
    for seq in [0, 2] {
        batch.push_prompt(&t[4 * seq..4 * seq + 8], 0, seq);
        rest.push_prompt(&t[4 * seq..4 * seq + 8], 0, seq);
        if seq == 0 {
            batch.push_prompt(&[t[0], Token::MAX, t[1]], 0, 1);
        }
    }
    ctx.encode(&batch).unwrap();
    let [rejected] = ctx.rejected() else {
        panic!("{:?}", ctx.rejected());
    };
    assert_eq!(rejected.seqs, SeqSet::one(1));
    assert!(matches!(rejected.error, DecodeError::Token { index: 9, .. }));
    twin.encode(&rest).unwrap();
    assert!(twin.rejected().is_empty());
    for seq in [0, 2] {
        let [ctx, twin] = [&mut ctx, &mut twin].map(|c| decode_one(c, t[30], 0, seq));
        assert_eq!(ctx, twin, "sequence {seq}");
    }
    let mut batch = Batch::new();
    batch.push(t[30], 0, SeqSet::one(1), true);
    let error = ctx.decode(&batch).unwrap_err();
    assert!(matches!(error, DecodeError::NotEncoded { seq: 1 }), "{error}");
    // If all sequences are invalid, nothing remains encoded.
    let mut wrong = Batch::new();
    wrong.push(Token::MAX, 0, SeqSet::one(0), false);
    let error = ctx.encode(&wrong).unwrap_err();
    assert!(matches!(error, DecodeError::Token { index: 0, .. }), "{error}");
    let mut batch = Batch::new();
    batch.push(t[30], 1, SeqSet::one(0), true);
    assert!(matches!(
        ctx.decode(&batch).unwrap_err(),
        DecodeError::NotEncoded { seq: 0 }
    ));
}

#[test]
fn invalid_shared_token_rejects_all_its_sequences() {
    let t = tokens("llama-dense");
    let mut draft = Draft::default();
    draft.run(&t[10..14], 5, 0).run(&t[20..22], 5, 1).run(&t[20..22], 5, 2);
    // Sequences 1 and 2 share their third token; a later token of sequence 1 is invalid.
    draft.0.push((t[3], 7, of(&[1, 2])));
    draft.run(&[t[4], Token::MAX], 8, 1);
    assert_rejects("llama-dense", &draft, of(&[1, 2]), |e| {
        matches!(e, DecodeError::Token { index: 10, .. })
    });
}

#[test]
fn differing_states_reject_only_their_sequences() {
    for name in ["mamba-dense", "falcon-h1-dense"] {
        let t = tokens(name);
        let mut draft = Draft::default();
        draft.run(&t[10..32], 5, 3);
        draft.0.push((t[3], 5, of(&[0, 1])));
        assert_rejects(name, &draft, of(&[0, 1]), |e| {
            matches!(
                e,
                DecodeError::Memory(MemoryError::StatesDiffer { first: 0, second: 1 })
            )
        });
    }
}

#[test]
fn full_context_rejects_only_sequence_that_does_not_fit() {
    let (m, t) = (model("llama-dense"), tokens("llama-dense"));
    let mut ctx = context(&m, |p| (p.n_ctx, p.n_seq_max) = (32, 3));
    decode_last(&mut ctx, &t[..20], 0, 0);
    let mut batch = Batch::new();
    batch.push_prompt(&t[..8], 0, 1);
    batch.push_prompt(&t[20..30], 20, 0);
    batch.push_prompt(&t[..4], 0, 2);
    ctx.decode(&batch).unwrap();
    let [rejected] = ctx.rejected() else {
        panic!("{:?}", ctx.rejected());
    };
    assert_eq!(rejected.seqs, SeqSet::one(0));
    assert_eq!(
        rejected.error.to_string(),
        "the context is full: 10 more tokens do not fit, 20 of 32 cells are in use; \
         shorten the prompt, remove cached tokens, or use a larger context"
    );
    assert_eq!([0, 1, 2].map(|seq| ctx.n_past(seq)), [20, 8, 4]);
    assert!(ctx.logits(7).is_some() && ctx.logits(17).is_none() && ctx.logits(21).is_some());
}

#[test]
fn fully_rejected_batch_is_an_error() {
    let m = model("llama-dense");
    let mut ctx = context(&m, |p| p.n_seq_max = 2);
    let mut batch = Batch::new();
    batch.push(Token::MAX, 0, SeqSet::one(1), true);
    batch.push(0, 3, SeqSet::one(0), true);
    batch.push(0, 0, SeqSet::default(), true);
    let error = ctx.decode(&batch).unwrap_err();
    assert!(matches!(error, DecodeError::Token { index: 0, .. }), "{error}");
    assert!(ctx.rejected().is_empty());
    assert_eq!(ctx.n_used(), 0);
}

fn nothing_to_add(m: &Model) -> ControlVector {
    let mut out = GgufWriter::new();
    let n_embd = m.base().n_embd();
    out.add_tensor("direction.1", GgmlType::F32, &[n_embd], vec![0; 4 * n_embd])
        .unwrap();
    let file = GgufFile::from_bytes("control.gguf", &out.to_bytes().unwrap()).unwrap();
    ControlVector::from_file(&file, m).unwrap()
}

/// Chunks of a prompt and single tokens of another sequence alternate. Only two graphs are built, and the
/// results match those of graphs rebuilt for every step.
#[test]
fn alternating_steps_do_not_rebuild_graphs() {
    for name in KINDS {
        let (m, t) = (model(name), tokens(name));
        let [mut ctx, mut rebuilding] = [(); 2].map(|()| context(&m, |p| p.n_seq_max = 2));
        let zeros = nothing_to_add(&m);
        for step in 0..6 {
            // Changing adapters invalidates all graphs, even if the adapters add nothing.
            rebuilding.set_control_vectors(&[(&zeros, 1.0)], 0..=1).unwrap();
            rebuilding.set_control_vectors(&[], 0..=1).unwrap();
            for ctx in [&mut ctx, &mut rebuilding] {
                decode_last(ctx, &t[8 * step..8 * step + 8], 8 * step, 0);
            }
            rebuilding.set_control_vectors(&[(&zeros, 1.0)], 0..=1).unwrap();
            rebuilding.set_control_vectors(&[], 0..=1).unwrap();
            let [a, b] = [&mut ctx, &mut rebuilding].map(|ctx| decode_one(ctx, t[step], step, 1));
            assert_eq!(a, b, "{name}, step {step}");
        }
        assert_eq!((ctx.perf().n_built, ctx.perf().n_reused), (2, 10), "{name}");
        assert_eq!(rebuilding.perf().n_built, 12, "{name}");
    }
}
