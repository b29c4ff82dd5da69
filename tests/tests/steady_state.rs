//! Steady-state decoding does not allocate heap memory, with and without adapters, on one device and on two.
//! Allocations of all threads are counted during decoding and during prompts of sizes seen before.

#[path = "../../engine/tests/counting/mod.rs"]
mod counting;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use counting::{ALLOCATIONS, ignore_harness};
use engine::adapter::{ControlVector, LoraAdapter};
use engine::context::{Batch, Context, ContextParams, SeqSet};
use engine::gguf::{GgufFile, GgufWriter};
use engine::model::{LoadParams, Model};
use engine::speculate::{DraftController, Lookup, MAX_DRAFTS, Mtp, Speculator, Step};
use engine::vocab::Token;
use kernels::{GgmlType, Precision};
use tests::mtp::{ModelFile, follower, speculating};
use tests::{context, decode_last, divide_rows, encode, exact, fixture, model, place_on, seeded_file};

/// Creates an adapter for one matrix of a model.
fn adapter(model: &Arc<Model>) -> LoraAdapter {
    let adapted = ["blk.0.attn_q.weight", "blk.0.ssm_in.weight"];
    let row = model
        .tensors()
        .iter()
        .find(|r| adapted.contains(&r.name.as_str()))
        .expect("the model has a query projection or a mixer");
    let weight = &row.name;
    let mut out = GgufWriter::new();
    out.set("general.type", "adapter")
        .set("adapter.type", "lora")
        .set("general.architecture", model.arch().name);
    for (suffix, ne) in [("lora_a", [row.ne[0], 4]), ("lora_b", [4, row.ne[1]])] {
        let data = vec![0; 4 * ne[0] * ne[1]];
        out.add_tensor(format!("{weight}.{suffix}"), GgmlType::F32, &ne, data)
            .unwrap();
    }
    let file = GgufFile::from_bytes("adapter.gguf", &out.to_bytes().unwrap()).unwrap();
    LoraAdapter::from_file(&file, model).unwrap()
}

fn control_vector(model: &Model) -> ControlVector {
    let n_embd = model.base().n_embd();
    let mut out = GgufWriter::new();
    out.add_tensor("direction.1", GgmlType::F32, &[n_embd], vec![0; 4 * n_embd])
        .unwrap();
    let file = GgufFile::from_bytes("control.gguf", &out.to_bytes().unwrap()).unwrap();
    ControlVector::from_file(&file, model).unwrap()
}

/// Asserts that decoding `n` tokens after a prompt does not allocate.
fn assert_allocates_nothing(what: &str, open: impl Fn() -> Context, tokens: &[Token], n: usize) {
    assert_eq!(
        allocations(&mut open(), tokens, n),
        0,
        "{what}: allocations in {n} tokens"
    );
}

fn allocations(ctx: &mut Context, tokens: &[Token], n: usize) -> usize {
    decode_last(ctx, &tokens[..16], 0, 0);
    let mut batch = Batch::new();
    let mut step = |pos: usize| {
        batch.clear();
        batch.push(tokens[pos % tokens.len()], pos, SeqSet::one(0), true);
        ctx.decode(&batch).unwrap();
        assert!(ctx.logits(0).is_some());
    };
    // The first tokens wake up the pool threads.
    step(16);
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    (17..17 + n).for_each(&mut step);
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

/// This file has a single test, because allocations of all threads are counted.
#[test]
fn decoding_single_tokens_allocates_nothing() {
    ignore_harness();
    // Rayon starts some of its threads lazily, which allocates.
    rayon::broadcast(|_| ());
    for name in [
        "mamba-dense",
        "falcon-h1-dense",
        "llama-dense",
        "llama-moe",
        "qwen3-dense",
        "gemma3-dense",
    ] {
        let tokens = tests::tokens(name);
        let on_cpu = model(name);
        let open = || context(&on_cpu, |p| p.n_ctx = 1024);
        assert_allocates_nothing(name, open, &tokens, 183);

        let adapted = || {
            let mut ctx = open();
            ctx.set_adapters(&[(Arc::new(adapter(&on_cpu)), 0.5)]).unwrap();
            ctx.set_control_vectors(&[(&control_vector(&on_cpu), 0.5)], 0..=1)
                .unwrap();
            ctx
        };
        assert_allocates_nothing(&format!("{name} with adapters"), adapted, &tokens, 183);

        let adapted = || {
            let mut ctx = context(&on_cpu, |p| (p.n_ctx, p.n_seq_max) = (1024, 2));
            let own = [(Arc::new(adapter(&on_cpu)), 0.5)];
            ctx.set_seq_adapters(1, Some(&own)).unwrap();
            ctx
        };
        assert_allocates_nothing(&format!("{name} with adapters of a sequence"), adapted, &tokens, 183);

        for n_layers in [2, 3] {
            let mut params = exact();
            place_on(&mut params.load, "reference", n_layers);
            let split = fixture(name).model(archs::ALL, &params).unwrap();
            let open = || context(&split, |p| p.n_ctx = 1024);
            assert_allocates_nothing(&format!("{name}, {n_layers} on reference"), open, &tokens, 183);
        }
        let mut params = exact();
        divide_rows(&mut params.load, 3, &[1.0, 1.0]);
        let divided = fixture(name).model(archs::ALL, &params).unwrap();
        let open = || context(&divided, |p| p.n_ctx = 1024);
        assert_allocates_nothing(&format!("{name}, rows divided"), open, &tokens, 183);

        let file = GgufFile::from_bytes("model.gguf", &seeded_file(name, Some(GgmlType::Q8_0))).unwrap();
        let repacked = Arc::new(Model::from_file(file, archs::ALL, &LoadParams::default()).unwrap());
        assert!((repacked.placement().parts.iter()).any(|parts| !parts[0].layout.is_plain()));
        for precision in [Precision::Fast, Precision::Exact] {
            let open = || context(&repacked, |p| (p.n_ctx, p.precision) = (1024, precision));
            assert_allocates_nothing(&format!("{name} repacked, {precision:?}"), open, &tokens, 183);
        }
    }
    every_kind_of_memory_allocates_nothing();
    prompts_allocate_nothing();
    mtp_drafts_allocate_nothing();
    drafts_of_many_sequences_allocate_nothing();
}

/// Models that together use every kind of memory.
const KINDS: [&str; 10] = [
    "llama-dense",     // KV cache
    "gemma3-dense",    // sliding windows
    "mamba-dense",     // recurrent states
    "falcon-h1-dense", // recurrent states and KV cache in every layer
    "lfm2-dense",      // recurrent states in some layers, KV cache in others
    "deepseek2-moe",   // latent attention
    "deepseek32-moe",  // indexer keys
    "deepseek4-moe",   // compressed keys
    "qwen4exp-moe",    // uses ids of earlier tokens, and block selection
    "t5-dense",        // encoder output
];

/// Starts after the cache sizes at which graphs are rebuilt.
fn every_kind_of_memory_allocates_nothing() {
    for name in KINDS {
        let model = model(name);
        let tokens = tests::tokens(name);
        let open = || {
            let mut ctx = context(&model, |p| p.n_ctx = 2304);
            encode(&mut ctx, &tokens[..64]);
            ctx
        };
        assert_allocates_nothing(name, open, &tokens, 2000);
    }
}

/// Prompts of one or several sequences in one or several ubatches, followed by decoding.
fn prompts_allocate_nothing() {
    let repacked = |name: &str| {
        let file = GgufFile::from_bytes("model.gguf", &seeded_file(name, Some(GgmlType::Q4_0))).unwrap();
        Arc::new(Model::from_file(file, archs::ALL, &LoadParams::default()).unwrap())
    };
    let plain = KINDS.map(|name| (name, model(name), Precision::Exact));
    let fast = ["llama-dense", "llama-moe", "gemma3-dense", "falcon-h1-dense"];
    let fast = fast.map(|name| (name, repacked(name), Precision::Fast));
    let mut failures = Vec::new();
    for (name, model, precision) in plain.into_iter().chain(fast) {
        for (n_seqs, n_ubatch, sizes) in [
            (1, 512, &[8, 31, 32, 33, 100, 256, 512][..]),
            (1, 96, &[96, 100, 512]),
            (4, 512, &[2, 8, 9, 64, 128]),
        ] {
            // The encoder output belongs to one sequence.
            if model.arch().encoder && n_seqs > 1 {
                continue;
            }
            let mut prompts = Prompts::new(name, &model, n_seqs, |p| {
                (p.n_ctx, p.n_seq_max, p.precision) = (2304, n_seqs, precision);
                (p.n_batch, p.n_ubatch) = (512, n_ubatch);
            });
            // Tests each size alone, and alternating with others, which rebuilds graphs.
            for sizes in sizes.chunks(1).chain([sizes]) {
                sizes.iter().for_each(|&n| {
                    prompts.run(n);
                });
                for &n in sizes.iter().chain(sizes) {
                    let n_taken = prompts.run(n);
                    if n_taken > 0 {
                        let how = if sizes.len() > 1 { "among other sizes" } else { "alone" };
                        failures.push(format!(
                            "{name}, {precision:?}, {n_seqs} sequences of {n} tokens with ubatch size {n_ubatch}, {how}: {n_taken}"
                        ));
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "allocations:\n{}", failures.join("\n"));
}

/// Several sequences with the same prompt.
struct Prompts {
    ctx: Context,
    n_seqs: usize,
    tokens: Vec<Token>,
    batch: Batch,
}

impl Prompts {
    fn new(name: &str, model: &Arc<Model>, n_seqs: usize, change: impl FnOnce(&mut ContextParams)) -> Prompts {
        Prompts {
            ctx: context(model, change),
            n_seqs,
            tokens: tests::tokens(name),
            batch: Batch::new(),
        }
    }

    /// Returns the number of allocations during a prompt of `n` tokens and eight more tokens per sequence.
    fn run(&mut self, n: usize) -> usize {
        // The encoder runs once per input text.
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        self.ctx.clear();
        let of_clearing = ALLOCATIONS.load(Ordering::Relaxed) - before;
        encode(&mut self.ctx, &self.tokens[..64]);
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        self.decode(0..n);
        (n..n + 8).for_each(|pos| self.decode(pos..pos + 1));
        of_clearing + ALLOCATIONS.load(Ordering::Relaxed) - before
    }

    /// Decodes tokens of all sequences at these positions.
    fn decode(&mut self, positions: Range<usize>) {
        self.batch.clear();
        for seq in 0..self.n_seqs {
            for pos in positions.clone() {
                let token = self.tokens[pos % self.tokens.len()];
                self.batch.push(token, pos, SeqSet::one(seq), pos + 1 == positions.end);
            }
        }
        self.ctx.decode(&self.batch).unwrap();
        assert!(self.ctx.rejected().is_empty());
        assert!(self.ctx.logits(self.batch.len() - 1).is_some());
    }
}

/// Tests an MTP layer with varying draft accuracy.
fn mtp_drafts_allocate_nothing() {
    for registered in tests::mtp::architectures() {
        for from_hidden in [false, true] {
            let file = ModelFile::predictable(registered, from_hidden);
            let mut ctx = speculating(&file.load(true), |p| p.n_ctx = 1024);
            let mut speculator = Speculator::new(DraftController::fixed(7)).with(0, Box::new(Mtp::new(&ctx).unwrap()));
            let mut text: Vec<Token> = Vec::with_capacity(1024);
            let mut token = 1;
            let mut step = |text: &mut Vec<Token>| {
                speculator.advance(&mut ctx, Step::new(0, text, token)).unwrap();
                text.push(token);
                token = follower(file.n_vocab(), token);
            };
            // Drafting starts with the second token.
            (0..64).for_each(|_| step(&mut text));
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            (0..800).for_each(|_| step(&mut text));
            let n = ALLOCATIONS.load(Ordering::Relaxed) - before;
            assert_eq!(n, 0, "{}: allocations in 800 tokens", registered.arch.name);
            assert!(speculator.drafted().n_right > 100);
        }
    }
}

/// Tests several sequences with repetitive passages.
fn drafts_of_many_sequences_allocate_nothing() {
    let model = model("llama-dense");
    let mut ctx = context(&model, |p| {
        (p.n_ctx, p.n_seq_max, p.n_rollback) = (4 * 512, 4, MAX_DRAFTS);
        (p.n_outputs_max, p.n_batch, p.n_ubatch) = (64, 64, 64);
    });
    let mut speculator = Speculator::new(DraftController::fixed(7));
    let mut texts: [Vec<Token>; 4] = std::array::from_fn(|_| Vec::with_capacity(512));
    for seq in 0..texts.len() {
        speculator.insert(seq, Box::new(Lookup::new(&[], 512)));
    }
    let next = |seq: usize, at: usize| ((at % (11 + seq) + at / 100) % 64) as Token;
    let mut run = |texts: &mut [Vec<Token>; 4], n: usize| {
        while texts.iter().any(|text| text.len() < n) {
            for (seq, text) in texts.iter_mut().enumerate() {
                while speculator.accept(seq, next(seq, text.len())).is_some() {
                    text.push(next(seq, text.len()));
                }
            }
            let token = |seq: usize| next(seq, texts[seq].len());
            let mut steps: [Step<'_>; 4] = std::array::from_fn(|seq| Step::new(seq, &texts[seq], token(seq)));
            speculator.decode(&mut ctx, &mut steps).unwrap();
            let tokens = steps.map(|step| step.token);
            texts.iter_mut().zip(tokens).for_each(|(text, token)| text.push(token));
        }
    };
    run(&mut texts, 40);
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    run(&mut texts, 400);
    let n = ALLOCATIONS.load(Ordering::Relaxed) - before;
    assert_eq!(n, 0, "allocations in 4 x 360 tokens");
    assert!(speculator.drafted().n_right > 800, "{:?}", speculator.drafted());
}
