//! Speculative decoding: whatever is guessed, the text is that of the plain run.

use std::sync::Arc;

use engine::context::{Batch, Context, DecodeError};
use engine::model::Model;
use engine::sample::{Chain, SamplerParams};
use engine::speculate::{DraftModel, Drafted, Drafter, Lookup, MAX_DRAFTS, Pace, Speculator};
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
    let mut speculator = drafter.map(|drafter| Speculator::new(drafter, Pace::fixed(7)));
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
