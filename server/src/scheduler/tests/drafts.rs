//! Tokens that are guessed: texts are those without, whatever else goes on, and nothing is left of drafts.

use ::tests::mtp::{ModelFile, architectures, follower};
use engine::context::MAX_SEQUENCES;
use engine::grammar::{Compiler, Constraint, Grammar, Trigger};
use engine::model::LoadParams;
use engine::sample::LogitBias;
use engine::speculate::{DraftModel, Drafted, Drafter, Lookup, MAX_DRAFTS, Mtp, Pace};

use super::*;

/// What drafts are made of.
enum By {
    /// Nothing: there are none.
    Nobody,
    /// What texts were without drafts.
    Lookup(Vec<Token>),
    /// The model itself, for so many texts at a time.
    Model(usize),
    /// The same, and it fails every so often.
    Failing(usize),
    /// The model's own layer.
    Mtp(usize),
}

/// Gives up each third draft.
struct Failing(DraftModel, usize);

impl Drafter for Failing {
    fn draft(
        &mut self,
        text: &[Token],
        token: Token,
        n: usize,
        drafts: &mut Vec<Token>,
    ) -> Result<(), engine::context::DecodeError> {
        self.1 += 1;
        match self.1.is_multiple_of(3) {
            true => Err(engine::context::DecodeError::Cancelled),
            false => self.0.draft(text, token, n, drafts),
        }
    }

    fn is_free(&self) -> bool {
        false
    }
}

fn drafters(by: &By, context: &Context) -> Option<Drafters> {
    let models = |n: usize| {
        DraftModel::several(context.model().clone(), context, n)
            .unwrap()
            .into_iter()
    };
    let boxed = |drafter: DraftModel| Box::new(drafter) as Box<dyn Drafter>;
    match by {
        By::Nobody => None,
        By::Lookup(corpus) => Some(Drafters::Lookup(Lookup::new(corpus, context.n_ctx()))),
        By::Model(n) => Some(Drafters::Some(models(*n).map(boxed).collect())),
        By::Failing(n) => {
            let failing = |model| Box::new(Failing(model, 0)) as Box<dyn Drafter>;
            Some(Drafters::Some(models(*n).map(failing).collect()))
        }
        By::Mtp(n) => {
            let mtp = |_| Box::new(Mtp::new(context).unwrap()) as Box<dyn Drafter>;
            Some(Drafters::Some((0..*n).map(mtp).collect()))
        }
    }
}

fn speculating(model: &Arc<Model>, by: &By, n_parallel: usize, n_ctx: usize) -> (Scheduler, Batcher) {
    let change = |p: &mut ContextParams| {
        (p.n_ctx, p.n_seq_max, p.n_batch, p.n_ubatch) = (n_ctx, (2 * n_parallel).min(MAX_SEQUENCES), 64, 64);
        (p.n_rollback, p.n_outputs_max, p.hidden) = (MAX_DRAFTS, 32, matches!(by, By::Mtp(_)));
    };
    let context = context(model, change);
    let speculation = drafters(by, &context).map(|drafters| Speculation {
        pace: Pace::fixed(7),
        drafters,
    });
    let settings = Settings {
        n_parallel,
        max_waiting: 64,
        ..Settings::default()
    };
    Scheduler::with_batcher(context, settings, speculation).unwrap()
}

fn drafted(told: &[Told]) -> Drafted {
    let add = |all: Drafted, told: &Told| Drafted {
        n_drafts: all.n_drafts + told.drafted.n_drafts,
        n_right: all.n_right + told.drafted.n_right,
    };
    told.iter().fold(Drafted::default(), add)
}

/// Greedy ones and sampled ones, long and short.
fn requests() -> Vec<Request> {
    let of = |i: usize| {
        let mut request = greedy(prompt(i, [3, 70, 1, 40, 150, 33][i % 6]), 20 + 5 * (i % 3));
        if i % 2 == 1 {
            request.sampler.temp = 0.7;
            request.sampler.seed = Some(i as u64);
        }
        request.n = 1 + usize::from(i == 2);
        request
    };
    (0..8).map(of).collect()
}

#[test]
fn texts_are_the_same_with_drafts() {
    // Of drafts by a model: it drafts what it finds likely, which may be nothing in some texts of some models.
    let mut n_right_by_models = 0;
    for name in MODELS {
        let model = model(name);
        let all = |by: &By, n_ctx: usize| {
            let (scheduler, mut batcher) = speculating(&model, by, 4, n_ctx);
            let asked = requests().into_iter().map(|r| scheduler.submit(r).unwrap()).collect();
            let mut told = finish(&mut batcher, asked);
            // With drafts another continuation may end first.
            told.iter_mut().for_each(|told| told.ends.sort_by_key(|end| end.0));
            assert_eq!(scheduler.gauges().n_running, 0);
            let n = drafted(&told);
            let metrics = scheduler.metrics();
            assert_eq!(
                (n.n_drafts as u64, n.n_right as u64),
                (metrics.n_drafts.get(), metrics.n_right.get())
            );
            (told, scheduler.metrics().n_preempted.get())
        };
        let (plain, _) = all(&By::Nobody, 1024);
        assert_eq!(drafted(&plain), Drafted::default());
        let corpus: Vec<Token> = plain.iter().flat_map(|told| told.tokens.concat()).collect();
        for (case, by, least) in [
            ("what texts were", By::Lookup(corpus), 40),
            ("a model for each", By::Model(4), 0),
            ("a model for one", By::Model(1), 0),
            ("a model that fails", By::Failing(2), 0),
        ] {
            let (told, _) = all(&by, 1024);
            for (i, (told, plain)) in told.iter().zip(&plain).enumerate() {
                assert_eq!(
                    (&told.tokens, &told.ends),
                    (&plain.tokens, &plain.ends),
                    "{name}: text {i}"
                );
            }
            let n = drafted(&told);
            assert!(n.n_drafts >= n.n_right && n.n_right >= least, "{name}, {case}: {n:?}");
            n_right_by_models += if least == 0 { n.n_right } else { 0 };
        }
    }
    assert!(n_right_by_models > 0);
}

/// A tiny model with a vocabulary of words and characters.
fn wordy() -> Arc<Model> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    std::fs::write(&path, ::tests::text_model("llama", None)).unwrap();
    Arc::new(Model::load(&path, archs::ALL, &LoadParams::default()).unwrap())
}

/// Takes a text again. Gives how many of its tokens had to keep to the grammar.
fn n_kept(constraint: &mut Constraint, text: &[Token]) -> usize {
    let mut n = 0;
    for &token in text {
        if !constraint.is_free() {
            assert!(constraint.allowed().unwrap().has(token), "{text:?}");
            n += 1;
        }
        constraint.accept(token).unwrap();
    }
    n
}

/// The same of texts that keep to a grammar, as a whole or from a mark on: drafts that do not are refused, and what is refused is forgotten.
#[test]
fn texts_that_keep_to_a_grammar_are_the_same_with_drafts() {
    let model = wordy();
    let compiler = Compiler::new(model.vocab(), N_VOCAB as usize).unwrap();
    let compile = |grammar: Grammar| compiler.compile(&grammar, model.vocab()).unwrap();
    let schema = r#"{"type": "object", "properties": {"a": {"type": "array", "items": {"enum": ["yes", "no", "abc"]}, "minItems": 9},
        "b": {"type": "boolean"}}, "required": ["a", "b"], "additionalProperties": false}"#;
    let parts = "%llguidance {}\nstart: \"w120\" /[ab]{6,12}/ \"!\"";
    let trigger = Trigger {
        marks: vec!["w120".to_owned()],
        ..Trigger::default()
    };
    let constraints = [
        compile(Grammar::JsonSchema(schema.to_owned())),
        compile(Grammar::Gbnf("root ::= (\"ab\" | \"on\" | \"one\"){9,20}".to_owned())),
        compile(Grammar::Gbnf(parts.to_owned())).lazily(trigger).unwrap(),
    ];
    let requests = || {
        let of = |i: usize| {
            let mut request = greedy(prompt(i, [3, 40, 70][i % 3]), 80);
            // The word that a part begins with.
            let bias = LogitBias { token: 120, bias: 3.0 };
            request.sampler.logit_bias.push(bias);
            if i % 2 == 1 || i % 3 == 2 {
                request.sampler.temp = 1.0;
                request.sampler.seed = Some(i as u64);
            }
            request.constraint = Some(constraints[i % 3].clone());
            request
        };
        (0..9).map(of)
    };
    let all = |by: &By| {
        let (scheduler, mut batcher) = speculating(&model, by, 4, 1024);
        let asked = requests().map(|r| scheduler.submit(r).unwrap()).collect();
        finish(&mut batcher, asked)
    };
    let plain = all(&By::Nobody);
    for (i, told) in plain.iter().enumerate() {
        assert_eq!(told.failed, None);
        assert!(n_kept(&mut constraints[i % 3].clone(), &told.tokens[0]) > 8, "text {i}");
    }
    let corpus: Vec<Token> = plain.iter().flat_map(|told| told.tokens.concat()).collect();
    for (by, least) in [(By::Lookup(corpus), 40), (By::Model(4), 0), (By::Failing(2), 0)] {
        let told = all(&by);
        for (i, (told, plain)) in told.iter().zip(&plain).enumerate() {
            assert_eq!((&told.tokens, &told.ends), (&plain.tokens, &plain.ends), "text {i}");
        }
        let n = drafted(&told);
        assert!(n.n_drafts > n.n_right && n.n_right >= least, "{n:?}");
    }
}

/// Where sequences have to give way to each other drafts only take what is free.
#[test]
fn drafts_take_nobody_s_room() {
    for name in ["llama-dense", "gemma3-dense", "falcon-h1-dense"] {
        let model = model(name);
        let all = |by: &By| {
            let (scheduler, mut batcher) = speculating(&model, by, 4, 200);
            let requests = (0..4).map(|i| greedy(prompt(i, 20), 60));
            let asked = requests.map(|request| scheduler.submit(request).unwrap()).collect();
            let told = finish(&mut batcher, asked);
            (told, scheduler.metrics().n_preempted.get())
        };
        let (plain, _) = all(&By::Nobody);
        let corpus: Vec<Token> = plain.iter().flat_map(|told| told.tokens.concat()).collect();
        for by in [By::Lookup(corpus), By::Model(4)] {
            let (told, n_preempted) = all(&by);
            assert!(n_preempted > 0, "{name}: all of it fits");
            for (told, plain) in told.iter().zip(&plain) {
                assert_eq!((&told.tokens, &told.ends), (&plain.tokens, &plain.ends), "{name}");
            }
        }
    }
}

/// What a text leaves behind can be gone on from as without drafts, also when its client goes in the middle of it.
#[test]
fn nothing_is_left_of_drafts() {
    for name in MODELS {
        let model = model(name);
        let (one, mut batcher) = speculating(&model, &By::Nobody, 2, 512);
        let plain = answer(&one, &mut batcher, greedy(prompt(1, 50), 40)).tokens[0].clone();
        let (scheduler, mut batcher) = speculating(&model, &By::Lookup(plain.clone()), 2, 512);
        let mut gone = scheduler.submit(greedy(prompt(1, 50), 40)).unwrap();
        let mut told = Told::default();
        while told.tokens.first().is_none_or(|tokens| tokens.len() < 10) {
            batcher.step(false);
            listen(&mut gone, &mut told);
        }
        assert_eq!(told.tokens[0], plain[..told.tokens[0].len()], "{name}");
        drop(gone);
        batcher.step(false);
        let held: usize = batcher.slots().iter().map(|slot| slot.n_held).sum();
        assert_eq!(
            held,
            50 + told.tokens[0].len() - 1,
            "{name}: the text but its last token"
        );
        let next = [prompt(1, 50), told.tokens[0].clone()].concat();
        let n_left = plain.len() - told.tokens[0].len();
        let told = answer(&scheduler, &mut batcher, greedy(next, n_left));
        assert_eq!(told.tokens[0], plain[plain.len() - n_left..], "{name}");
        assert_eq!(told.prompt.map(|p| p.n_cached), Some(held), "{name}");
    }
}

#[test]
fn the_model_s_own_layer_drafts() {
    let registered = architectures().next().unwrap();
    let file = ModelFile::predictable(registered, true);
    let (model, n_vocab) = (file.load(true), file.n_vocab());
    // More texts than drafters, and one that goes on from another.
    let of = |by: By| {
        let (scheduler, mut batcher) = speculating(&model, &by, 3, 1024);
        let text = |i: usize, n: usize| {
            let mut token = i as Token;
            let next = || {
                token = follower(n_vocab, token);
                token
            };
            std::iter::repeat_with(next).take(n).collect::<Vec<Token>>()
        };
        let requests = [(1, 20), (2, 70), (3, 5), (1, 30)].map(|(i, n)| greedy(text(i, n), 40));
        let asked = requests.map(|request| scheduler.submit(request).unwrap()).into();
        finish(&mut batcher, asked)
    };
    let (plain, told) = (of(By::Nobody), of(By::Mtp(2)));
    for (told, plain) in told.iter().zip(&plain) {
        assert_eq!((&told.tokens, &told.ends), (&plain.tokens, &plain.ends));
    }
    let n = drafted(&told);
    assert!(n.n_right > 60, "{n:?}");
}

/// Only where it pays: a drafter that is always wrong is soon left alone.
#[test]
fn drafts_that_are_never_right_are_not_made_for_long() {
    struct Wrong;
    impl Drafter for Wrong {
        fn draft(
            &mut self,
            _: &[Token],
            token: Token,
            n: usize,
            drafts: &mut Vec<Token>,
        ) -> Result<(), engine::context::DecodeError> {
            drafts.extend((0..n).map(|i| (token + 1 + i as Token) % N_VOCAB));
            Ok(())
        }

        fn is_free(&self) -> bool {
            true
        }
    }
    let context = context(&model("llama-dense"), |p| {
        (p.n_ctx, p.n_seq_max, p.n_batch, p.n_ubatch, p.n_outputs_max) = (1024, 2, 64, 64, 32);
    });
    let speculation = Speculation {
        pace: Pace::by_tokens(MAX_DRAFTS),
        drafters: Drafters::Some(vec![Box::new(Wrong)]),
    };
    let settings = Settings {
        n_parallel: 1,
        ..Settings::default()
    };
    let (scheduler, mut batcher) = Scheduler::with_batcher(context, settings, Some(speculation)).unwrap();
    let told = answer(&scheduler, &mut batcher, greedy(prompt(1, 5), 300));
    assert_eq!(told.tokens[0].len(), 300);
    // Three at least behind each token would be 900.
    assert!(told.drafted.n_drafts < 60, "{:?}", told.drafted);
}
