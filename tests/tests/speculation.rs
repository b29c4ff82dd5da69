//! Tests that speculative decoding never changes the generated text.

use std::sync::Arc;

use engine::context::{Batch, Context, DecodeError};
use engine::model::Model;
use engine::sample::{SamplerChain, SamplerParams};
use engine::speculate::{DraftController, DraftModel, Drafted, Drafter, Lookup, MAX_DRAFTS, Speculator, Step};
use engine::vocab::Token;
use tests::{context, model, tokens};

/// Models that together use every kind of memory.
const KINDS: [&str; 5] = [
    "llama-dense",
    "gemma3-dense",
    "mamba-dense",
    "falcon-h1-dense",
    "qwen3next-moe",
];

const N_PROMPT: usize = 8;
const N_TEXT: usize = 80;

/// Drafter that replays the text of the plain run with regular errors.
struct Oracle {
    text: Vec<Token>,
    /// Every n-th draft is wrong; 0: all are correct.
    wrong: usize,
}

impl Drafter for Oracle {
    fn draft(&mut self, text: &[Token], _: Token, n: usize, drafts: &mut Vec<Token>) -> Result<(), DecodeError> {
        for at in (text.len() + 1..self.text.len()).take(n) {
            let is_wrong = self.wrong > 0 && at % self.wrong == 0;
            drafts.push(self.text[at] ^ Token::from(is_wrong));
        }
        Ok(())
    }

    fn is_free(&self) -> bool {
        true
    }
}

fn speculating(model: &Arc<Model>) -> Context {
    context(model, |p| {
        (p.n_rollback, p.n_outputs_max) = (MAX_DRAFTS, MAX_DRAFTS + 1)
    })
}

/// Generates tokens after a prompt.
fn generate(
    context: &mut Context,
    params: &SamplerParams,
    prompt: &[Token],
    drafter: Option<Box<dyn Drafter>>,
) -> (Vec<Token>, Drafted) {
    generate_some(context, params, prompt, drafter, N_TEXT)
}

/// Calls [`generate`] for up to `n` tokens.
fn generate_some(
    context: &mut Context,
    params: &SamplerParams,
    prompt: &[Token],
    drafter: Option<Box<dyn Drafter>>,
    n: usize,
) -> (Vec<Token>, Drafted) {
    let mut chain = SamplerChain::new(params, context.model().base().n_vocab(), None).unwrap();
    let mut speculator = drafter.map(|drafter| Speculator::new(DraftController::fixed(7)).with(0, drafter));
    context.clear();
    let mut batch = Batch::new();
    batch.push_prompt(prompt, 0, 0);
    context.decode(&batch).unwrap();
    let (mut text, mut row) = (prompt.to_vec(), prompt.len() - 1);
    while text.len() < n {
        let token = chain.sample(context.logits(row).unwrap()).unwrap();
        chain.accept(token);
        row = match &mut speculator {
            Some(speculator) => speculator.advance(context, Step::new(0, &text, token)).unwrap(),
            None => {
                batch.clear();
                batch.push_prompt(&[token], text.len(), 0);
                context.decode(&batch).unwrap();
                0
            }
        };
        text.push(token);
    }
    if let Some(speculator) = &mut speculator {
        speculator.forget_drafts(context, 0, text.len()).unwrap();
    }
    assert_eq!(
        context.n_past(0),
        text.len(),
        "the cache contains the text without drafts"
    );
    (text, speculator.map(|s| s.drafted()).unwrap_or_default())
}

fn sampled(seed: u64) -> SamplerParams {
    SamplerParams {
        seed: Some(seed),
        temp: 0.7,
        ..SamplerParams::default()
    }
}

#[test]
fn drafts_never_change_text() {
    for name in KINDS {
        let (model, prompt) = (model(name), &tokens(name)[..N_PROMPT]);
        let mut context = speculating(&model);
        for params in [SamplerParams::greedy(), sampled(1), sampled(2)] {
            let (plain, _) = generate(&mut context, &params, prompt, None);
            for wrong in [0, 1, 2, 5] {
                let text = plain.clone();
                let (found, drafted) = generate(&mut context, &params, prompt, Some(Box::new(Oracle { text, wrong })));
                assert_eq!(found, plain, "{name}, one of {wrong} wrong");
                if wrong == 0 {
                    assert!(drafted.n_right > 20, "{name}: {drafted:?}");
                }
            }
        }
    }
}

#[test]
fn prompt_lookup_drafts_repeated_text() {
    let name = "llama-dense";
    let (model, prompt) = (model(name), &tokens(name)[..N_PROMPT]);
    let mut context = speculating(&model);
    let greedy = SamplerParams::greedy();
    let (plain, _) = generate(&mut context, &greedy, prompt, None);
    // With the expected output as corpus, every draft is correct.
    let lookup = Lookup::new(&plain, context.n_ctx());
    let (found, drafted) = generate(&mut context, &greedy, prompt, Some(Box::new(lookup)));
    assert_eq!(found, plain);
    assert!(drafted.n_right > 20, "{drafted:?}");
}

#[test]
fn draft_model_follows_text() {
    for name in ["llama-dense", "mamba-dense"] {
        let (model, prompt) = (model(name), &tokens(name)[..N_PROMPT]);
        let mut context = speculating(&model);
        for params in [SamplerParams::greedy(), sampled(3)] {
            let (plain, _) = generate(&mut context, &params, prompt, None);
            let drafter = DraftModel::new(model.clone(), &context).unwrap();
            let (found, _) = generate(&mut context, &params, prompt, Some(Box::new(drafter)));
            assert_eq!(found, plain, "{name}");
        }
    }
}

#[test]
fn draft_model_with_other_vocabulary_is_rejected() {
    let context = speculating(&model("llama-dense"));
    let other = DraftModel::new(model("t5-dense"), &context).err().unwrap();
    assert!(
        other.to_string().contains("does not generate tokens incrementally"),
        "{other}"
    );
}

/// Compares token frequencies four positions after the prompt with and without drafts over many seeds, using
/// the two-sample chi-square statistic.
#[test]
fn drafts_keep_sampling_distribution() {
    const N: u64 = 600;
    let name = "llama-dense";
    let (model, prompt) = (model(name), &tokens(name)[..N_PROMPT]);
    let mut context = speculating(&model);
    // Few likely tokens, so that each occurs often.
    let params = |seed| SamplerParams {
        seed: Some(seed),
        top_k: 4,
        ..SamplerParams::default()
    };
    let (text, _) = generate(&mut context, &params(0), prompt, None);
    let mut counts = std::collections::BTreeMap::<Token, [f64; 2]>::new();
    for seed in 0..N {
        let drafts = (seed % 2 == 1).then(|| {
            let text = text.clone();
            Box::new(Oracle { text, wrong: 0 }) as Box<dyn Drafter>
        });
        // Different seeds make the two samples independent.
        let side = usize::from(drafts.is_some());
        let (found, _) = generate_some(&mut context, &params(1000 + seed), prompt, drafts, N_PROMPT + 12);
        counts.entry(found[N_PROMPT + 8]).or_default()[side] += 1.0;
    }
    let mut chi_square = 0.0;
    let mut degrees = -1.0;
    for [a, b] in counts.values() {
        if a + b >= 10.0 {
            chi_square += (a - b).powi(2) / (a + b);
            degrees += 1.0;
        }
    }
    // The limit is four standard deviations above the mean.
    let limit = degrees + 4.0 * (2.0 * f64::max(degrees, 1.0)).sqrt();
    assert!(
        degrees >= 2.0 && chi_square < limit,
        "{chi_square} of {limit}: {counts:?}"
    );
}

/// A sequence that is decoded together with other sequences.
struct Text {
    tokens: Vec<Token>,
    chain: SamplerChain,
    /// Row of the logits after the sequence's last token.
    row: usize,
    /// Next token, once the sequence must decode it.
    waiting: Option<Token>,
}

/// Samples tokens while they match accepted drafts.
fn run_ahead(context: &Context, speculator: &mut Speculator, seq: usize, text: &mut Text, n: usize) {
    while text.tokens.len() < n && text.waiting.is_none() {
        let token = text.chain.sample(context.logits(text.row).unwrap()).unwrap();
        text.chain.accept(token);
        match speculator.accept(seq, token) {
            Some(row) => {
                text.row = row;
                text.tokens.push(token);
            }
            None => text.waiting = Some(token),
        }
    }
}

/// Generates `n` tokens per text after the prompts, all decoded together. Also returns the number of decodes.
fn generate_together(
    context: &mut Context,
    speculator: &mut Speculator,
    prompts: &[&[Token]],
    params: impl Fn(usize) -> SamplerParams,
    n: usize,
) -> (Vec<Vec<Token>>, usize) {
    context.clear();
    let mut batch = Batch::new();
    let mut texts = Vec::new();
    for (seq, prompt) in prompts.iter().enumerate() {
        batch.push_prompt(prompt, 0, seq);
        texts.push(Text {
            tokens: prompt.to_vec(),
            chain: SamplerChain::new(&params(seq), context.model().base().n_vocab(), None).unwrap(),
            row: batch.len() - 1,
            waiting: None,
        });
    }
    context.decode(&batch).unwrap();
    for n_decodes in 0.. {
        for (seq, text) in texts.iter_mut().enumerate() {
            run_ahead(context, speculator, seq, text, n);
        }
        let waiting = |(seq, text): (usize, &Text)| Some((seq, text.waiting?));
        let waiting: Vec<(usize, Token)> = texts.iter().enumerate().filter_map(waiting).collect();
        if waiting.is_empty() {
            for (seq, text) in texts.iter().enumerate() {
                speculator.forget_drafts(context, seq, text.tokens.len()).unwrap();
                assert_eq!(
                    context.n_past(seq),
                    text.tokens.len(),
                    "the cache contains the text without drafts"
                );
            }
            return (texts.into_iter().map(|text| text.tokens).collect(), n_decodes);
        }
        let step = |&(seq, token): &(usize, Token)| Step::new(seq, &texts[seq].tokens, token);
        let mut steps: Vec<Step<'_>> = waiting.iter().map(step).collect();
        speculator.decode(context, &mut steps).unwrap();
        let rows: Vec<usize> = steps.iter().map(|step| step.row.unwrap()).collect();
        for ((seq, token), row) in waiting.into_iter().zip(rows) {
            texts[seq].row = row;
            texts[seq].waiting = None;
            texts[seq].tokens.push(token);
        }
    }
    unreachable!("texts end")
}

fn together(model: &Arc<Model>) -> Context {
    context(model, |p| {
        (p.n_ctx, p.n_rollback, p.n_seq_max) = (4 * 128, MAX_DRAFTS, 4);
        (p.n_outputs_max, p.n_batch, p.n_ubatch) = (64, 64, 64);
    })
}

#[test]
fn batched_drafts_never_change_text() {
    for name in KINDS {
        let (model, tokens) = (model(name), tokens(name));
        let prompts = [0, 1, 2, 3].map(|i| &tokens[i..i + N_PROMPT - i]);
        let mut context = together(&model);
        for sampler in [|_| SamplerParams::greedy(), |seq| sampled(seq as u64)] {
            let mut none = Speculator::new(DraftController::fixed(7));
            let (plain, n_plain) = generate_together(&mut context, &mut none, &prompts, sampler, N_TEXT);
            assert_eq!(none.drafted(), Drafted::default());
            // The first drafter is always right, others sometimes or never; the last sequence has no drafts.
            let mut speculator = Speculator::new(DraftController::fixed(7));
            for (seq, wrong) in [(0, 0), (1, 5), (2, 1)] {
                let text = plain[seq].clone();
                speculator.insert(seq, Box::new(Oracle { text, wrong }));
            }
            let (found, n_decodes) = generate_together(&mut context, &mut speculator, &prompts, sampler, N_TEXT);
            assert_eq!(found, plain, "{name}");
            let drafted = speculator.drafted();
            assert!(
                drafted.n_right > 60 && drafted.n_right < drafted.n_drafts,
                "{name}: {drafted:?}"
            );
            assert!(n_decodes <= n_plain, "{name}: {n_decodes} decodes instead of {n_plain}");
        }
    }
}

/// The batch has space for few drafts, but always correct drafts still reduce the number of decodes.
#[test]
fn drafts_fill_output_limit() {
    let name = "llama-dense";
    let (model, tokens) = (model(name), tokens(name));
    let prompts = [0, 1].map(|i| &tokens[i..i + N_PROMPT - i]);
    let mut context = context(&model, |p| {
        (p.n_ctx, p.n_seq_max) = (2 * 128, 2);
        (p.n_outputs_max, p.n_batch, p.n_ubatch) = (8, 32, 32);
    });
    let greedy = |_| SamplerParams::greedy();
    let mut none = Speculator::new(DraftController::fixed(7));
    let (plain, n_plain) = generate_together(&mut context, &mut none, &prompts, greedy, N_TEXT);
    let mut speculator = Speculator::new(DraftController::fixed(7));
    for (seq, text) in plain.iter().cloned().enumerate() {
        speculator.insert(seq, Box::new(Oracle { text, wrong: 0 }));
    }
    let (found, n_decodes) = generate_together(&mut context, &mut speculator, &prompts, greedy, N_TEXT);
    assert_eq!(found, plain);
    // Eight outputs fit two tokens with three drafts each.
    assert!(n_decodes <= n_plain / 3, "{n_decodes} decodes instead of {n_plain}");
}

/// Checks that a rejected sequence keeps its tokens and is reported, while other sequences continue.
#[test]
fn rejected_sequence_keeps_other_drafts() {
    let name = "llama-dense";
    let (model, tokens) = (model(name), tokens(name));
    let prompt = &tokens[..N_PROMPT];
    let mut context = together(&model);
    let mut none = Speculator::new(DraftController::fixed(7));
    let (plain, _) = generate_together(&mut context, &mut none, &[prompt], |_| SamplerParams::greedy(), N_TEXT);
    context.clear();
    let mut batch = Batch::new();
    (0..2).for_each(|seq| batch.push_prompt(prompt, 0, seq));
    context.decode(&batch).unwrap();
    let text = &plain[0];
    let oracle = || {
        Box::new(Oracle {
            text: text.clone(),
            wrong: 0,
        })
    };
    let mut speculator = Speculator::new(DraftController::fixed(7))
        .with(0, oracle())
        .with(1, oracle());
    let no_token = model.base().n_vocab() as Token;
    let mut steps = [text[N_PROMPT], no_token].into_iter().enumerate();
    let mut steps = [(); 2]
        .map(|()| steps.next().unwrap())
        .map(|(seq, token)| Step::new(seq, prompt, token));
    speculator.decode(&mut context, &mut steps).unwrap();
    assert!(steps[0].row.is_some() && steps[1].row.is_none(), "{steps:?}");
    assert_eq!(context.rejected().len(), 1);
    assert_eq!(context.n_past(1), N_PROMPT);
    assert!(speculator.accept(0, text[N_PROMPT + 1]).is_some());
    assert!(speculator.accept(1, text[N_PROMPT + 1]).is_none());
    // The rejected sequence continues, which replaces the other sequence's logits.
    assert!(
        speculator
            .advance(&mut context, Step::new(1, prompt, text[N_PROMPT]))
            .is_ok()
    );
    assert!(speculator.accept(1, text[N_PROMPT + 1]).is_some());
    assert_eq!(context.n_past(0), N_PROMPT + 2);
}
