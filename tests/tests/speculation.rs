//! Speculative decoding: whatever is guessed, the text is that of the plain run.

use std::sync::Arc;

use engine::context::{Batch, Context, DecodeError};
use engine::model::Model;
use engine::sample::{Chain, SamplerParams};
use engine::speculate::{DraftModel, Drafted, Drafter, Lookup, MAX_DRAFTS, Pace, Speculator, Step};
use engine::vocab::Token;
use tests::{context, model, tokens};

/// Models of every kind of memory.
const KINDS: [&str; 5] = [
    "llama-dense",
    "gemma3-dense",
    "mamba-dense",
    "falcon-h1-dense",
    "qwen3next-moe",
];

const N_PROMPT: usize = 8;
const N_TEXT: usize = 80;

/// Knows the text of the plain run, and is wrong every so often.
struct Oracle {
    text: Vec<Token>,
    /// Every so many-th token is guessed wrong; 0: none.
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

/// A prompt and what is generated after it.
fn generate(
    context: &mut Context,
    params: &SamplerParams,
    prompt: &[Token],
    drafter: Option<Box<dyn Drafter>>,
) -> (Vec<Token>, Drafted) {
    generate_some(context, params, prompt, drafter, N_TEXT)
}

/// The same for a text of `n` tokens.
fn generate_some(
    context: &mut Context,
    params: &SamplerParams,
    prompt: &[Token],
    drafter: Option<Box<dyn Drafter>>,
    n: usize,
) -> (Vec<Token>, Drafted) {
    let mut chain = Chain::new(params, context.model().base().n_vocab(), None).unwrap();
    let mut speculator = drafter.map(|drafter| Speculator::new(Pace::fixed(7)).with(0, drafter));
    context.clear();
    let mut batch = Batch::new();
    batch.push_prompt(prompt, 0, 0);
    context.decode(&batch).unwrap();
    let (mut text, mut row) = (prompt.to_vec(), prompt.len() - 1);
    while text.len() < n {
        let token = chain.sample(context.logits(row).unwrap()).unwrap();
        chain.accept(token);
        row = match &mut speculator {
            Some(speculator) => speculator.advance(context, 0, &text, token).unwrap(),
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
    assert_eq!(context.n_past(0), text.len(), "the memory holds the text and no drafts");
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
fn texts_are_those_of_the_plain_run_whatever_is_guessed() {
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
fn lookup_drafts_what_the_text_repeats() {
    let name = "llama-dense";
    let (model, prompt) = (model(name), &tokens(name)[..N_PROMPT]);
    let mut context = speculating(&model);
    let greedy = SamplerParams::greedy();
    let (plain, _) = generate(&mut context, &greedy, prompt, None);
    // A corpus of the very text: every draft is right, once there are any.
    let lookup = Lookup::new(&plain, context.n_ctx());
    let (found, drafted) = generate(&mut context, &greedy, prompt, Some(Box::new(lookup)));
    assert_eq!(found, plain);
    assert!(drafted.n_right > 20, "{drafted:?}");
}

#[test]
fn a_draft_model_follows_the_text() {
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
fn a_draft_model_with_another_vocabulary_is_refused() {
    let context = speculating(&model("llama-dense"));
    let other = DraftModel::new(model("t5-dense"), &context).err().unwrap();
    assert!(other.to_string().contains("one by one"), "{other}");
}

/// Frequencies of the token four places after the prompt, over many seeds, with drafts and without: the chi-square statistic of two samples.
#[test]
fn sampled_texts_have_the_distribution_of_plain_ones() {
    const N: u64 = 600;
    let name = "llama-dense";
    let (model, prompt) = (model(name), &tokens(name)[..N_PROMPT]);
    let mut context = speculating(&model);
    // Few likely tokens, so that each is counted often.
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
        // Other seeds for the two, so that they are independent samples.
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
    // Four standard deviations above the mean.
    let limit = degrees + 4.0 * (2.0 * f64::max(degrees, 1.0)).sqrt();
    assert!(
        degrees >= 2.0 && chi_square < limit,
        "{chi_square} of {limit}: {counts:?}"
    );
}

/// A text of several that are decoded together.
struct Text {
    tokens: Vec<Token>,
    chain: Chain,
    /// Where the logits after it stand.
    row: usize,
    /// The token that is to follow, once it is decoded.
    waiting: Option<Token>,
}

/// Samples tokens of a text as long as they were drafted.
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

/// Texts of `n` tokens behind prompts, decoded together, and how many decodes that took.
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
            chain: Chain::new(&params(seq), context.model().base().n_vocab(), None).unwrap(),
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
                    "the memory holds the text and no drafts"
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
fn texts_of_sequences_decoded_together_are_the_plain_ones() {
    for name in KINDS {
        let (model, tokens) = (model(name), tokens(name));
        let prompts = [0, 1, 2, 3].map(|i| &tokens[i..i + N_PROMPT - i]);
        let mut context = together(&model);
        for sampler in [|_| SamplerParams::greedy(), |seq| sampled(seq as u64)] {
            let mut none = Speculator::new(Pace::fixed(7));
            let (plain, n_plain) = generate_together(&mut context, &mut none, &prompts, sampler, N_TEXT);
            assert_eq!(none.drafted(), Drafted::default());
            // The first is always right, others sometimes or never; the last has no drafts.
            let mut speculator = Speculator::new(Pace::fixed(7));
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

/// With room for few drafts in all, and each always right, decodes are saved all the same.
#[test]
fn as_many_drafts_are_verified_as_there_is_room_for() {
    let name = "llama-dense";
    let (model, tokens) = (model(name), tokens(name));
    let prompts = [0, 1].map(|i| &tokens[i..i + N_PROMPT - i]);
    let mut context = context(&model, |p| {
        (p.n_ctx, p.n_seq_max) = (2 * 128, 2);
        (p.n_outputs_max, p.n_batch, p.n_ubatch) = (8, 32, 32);
    });
    let greedy = |_| SamplerParams::greedy();
    let mut none = Speculator::new(Pace::fixed(7));
    let (plain, n_plain) = generate_together(&mut context, &mut none, &prompts, greedy, N_TEXT);
    let mut speculator = Speculator::new(Pace::fixed(7));
    for (seq, text) in plain.iter().cloned().enumerate() {
        speculator.insert(seq, Box::new(Oracle { text, wrong: 0 }));
    }
    let (found, n_decodes) = generate_together(&mut context, &mut speculator, &prompts, greedy, N_TEXT);
    assert_eq!(found, plain);
    // Eight outputs are for two tokens and three drafts of each.
    assert!(n_decodes <= n_plain / 3, "{n_decodes} decodes instead of {n_plain}");
}

/// A sequence that is rejected keeps its text and can be told from the others, which go on.
#[test]
fn a_rejected_sequence_leaves_the_others_their_drafts() {
    let name = "llama-dense";
    let (model, tokens) = (model(name), tokens(name));
    let prompt = &tokens[..N_PROMPT];
    let mut context = together(&model);
    let mut none = Speculator::new(Pace::fixed(7));
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
    let mut speculator = Speculator::new(Pace::fixed(7)).with(0, oracle()).with(1, oracle());
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
    // The one rejected goes on, and takes the logits of the other with it.
    assert!(speculator.advance(&mut context, 1, prompt, text[N_PROMPT]).is_ok());
    assert!(speculator.accept(1, text[N_PROMPT + 1]).is_some());
    assert_eq!(context.n_past(0), N_PROMPT + 2);
}
