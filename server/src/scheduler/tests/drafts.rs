//! Speculative decoding: completions equal those without drafts, and rejected drafts leave no state.

use ::tests::mtp::{ModelFile, architectures, follower};
use engine::context::MAX_SEQUENCES;
use engine::grammar::{Compiler, Constraint, Grammar, Trigger};
use engine::model::LoadParams;
use engine::sample::LogitBias;
use engine::speculate::{DraftController, DraftModel, Drafted, Drafter, Lookup, MAX_DRAFTS, Mtp};

use super::*;

/// Source of drafts.
enum By {
    /// No drafts.
    Nobody,
    /// Prompt lookup in a corpus of completions without drafts.
    Lookup(Vec<Token>),
    /// The model itself, for a limited number of completions at a time.
    Model(usize),
    /// A drafter like `Model` that fails periodically.
    Failing(usize),
    /// Multi-token prediction layers of the model.
    Mtp(usize),
}

/// Fails every third draft.
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
        if self.1.is_multiple_of(3) {
            Err(engine::context::DecodeError::Cancelled)
        } else {
            self.0.draft(text, token, n, drafts)
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
        controller: DraftController::fixed(7),
        drafters,
    });
    let settings = Settings {
        n_parallel,
        max_waiting: 64,
        ..Settings::default()
    };
    Scheduler::with_batcher(context, settings, speculation).unwrap()
}

fn drafted(output: &[Output]) -> Drafted {
    let add = |all: Drafted, output: &Output| Drafted {
        n_drafts: all.n_drafts + output.drafted.n_drafts,
        n_right: all.n_right + output.drafted.n_right,
    };
    output.iter().fold(Drafted::default(), add)
}

/// Returns greedy and sampled requests of various lengths.
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
fn completions_are_unchanged_by_drafts() {
    // Accepted drafts by models. A model drafts only likely tokens, which may be none in some completions.
    let mut n_right_by_models = 0;
    for name in MODELS {
        let model = model(name);
        let all = |by: &By, n_ctx: usize| {
            let (scheduler, mut batcher) = speculating(&model, by, 4, n_ctx);
            let receivers = requests().into_iter().map(|r| scheduler.submit(r).unwrap()).collect();
            let mut output = finish(&mut batcher, receivers);
            // Drafts may change the order in which choices end.
            output
                .iter_mut()
                .for_each(|output| output.ends.sort_by_key(|end| end.0));
            assert_eq!(scheduler.gauges().n_running, 0);
            let n = drafted(&output);
            let metrics = scheduler.metrics();
            assert_eq!(
                (n.n_drafts as u64, n.n_right as u64),
                (metrics.n_drafts.get(), metrics.n_right.get())
            );
            (output, scheduler.metrics().n_preempted.get())
        };
        let (plain, _) = all(&By::Nobody, 1024);
        assert_eq!(drafted(&plain), Drafted::default());
        let corpus: Vec<Token> = plain.iter().flat_map(|output| output.tokens.concat()).collect();
        for (case, by, least) in [
            ("lookup in completions", By::Lookup(corpus), 40),
            ("one drafter per completion", By::Model(4), 0),
            ("a single drafter", By::Model(1), 0),
            ("a failing drafter", By::Failing(2), 0),
        ] {
            let (output, _) = all(&by, 1024);
            for (i, (output, plain)) in output.iter().zip(&plain).enumerate() {
                assert_eq!(
                    (&output.tokens, &output.ends),
                    (&plain.tokens, &plain.ends),
                    "{name}: text {i}"
                );
            }
            let n = drafted(&output);
            assert!(n.n_drafts >= n.n_right && n.n_right >= least, "{name}, {case}: {n:?}");
            n_right_by_models += if least == 0 { n.n_right } else { 0 };
        }
    }
    assert!(n_right_by_models > 0);
}

/// Loads a tiny model with a vocabulary of words and characters.
fn wordy() -> Arc<Model> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    std::fs::write(&path, ::tests::text_model("llama", None)).unwrap();
    Arc::new(Model::load(&path, archs::ALL, &LoadParams::default()).unwrap())
}

/// Replays a completion; returns how many tokens the grammar constrained.
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

/// Constrained completions have the same output with drafts, whether the constraint applies to the whole
/// output or after a trigger.
#[test]
fn constrained_completions_are_unchanged_by_drafts() {
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
            // Favors the word that triggers the constraint.
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
        let receivers = requests().map(|r| scheduler.submit(r).unwrap()).collect();
        finish(&mut batcher, receivers)
    };
    let plain = all(&By::Nobody);
    for (i, output) in plain.iter().enumerate() {
        assert_eq!(output.failed, None);
        assert!(
            n_kept(&mut constraints[i % 3].clone(), &output.tokens[0]) > 8,
            "text {i}"
        );
    }
    let corpus: Vec<Token> = plain.iter().flat_map(|output| output.tokens.concat()).collect();
    for (by, least) in [(By::Lookup(corpus), 40), (By::Model(4), 0), (By::Failing(2), 0)] {
        let output = all(&by);
        for (i, (output, plain)) in output.iter().zip(&plain).enumerate() {
            assert_eq!((&output.tokens, &output.ends), (&plain.tokens, &plain.ends), "text {i}");
        }
        let n = drafted(&output);
        assert!(n.n_drafts > n.n_right && n.n_right >= least, "{n:?}");
    }
}

/// Under memory pressure, drafts use only free cells.
#[test]
fn drafts_use_only_free_cells() {
    for name in ["llama-dense", "gemma3-dense", "falcon-h1-dense"] {
        let model = model(name);
        let all = |by: &By| {
            let (scheduler, mut batcher) = speculating(&model, by, 4, 200);
            let requests = (0..4).map(|i| greedy(prompt(i, 20), 60));
            let receivers = requests.map(|request| scheduler.submit(request).unwrap()).collect();
            let output = finish(&mut batcher, receivers);
            (output, scheduler.metrics().n_preempted.get())
        };
        let (plain, _) = all(&By::Nobody);
        let corpus: Vec<Token> = plain.iter().flat_map(|output| output.tokens.concat()).collect();
        for by in [By::Lookup(corpus), By::Model(4)] {
            let (output, n_preempted) = all(&by);
            assert!(n_preempted > 0, "{name}: expected at least one preemption");
            for (output, plain) in output.iter().zip(&plain) {
                assert_eq!((&output.tokens, &output.ends), (&plain.tokens, &plain.ends), "{name}");
            }
        }
    }
}

/// A finished or cancelled completion can be continued from the cache as without drafts.
#[test]
fn rejected_drafts_leave_no_state() {
    for name in MODELS {
        let model = model(name);
        let (one, mut batcher) = speculating(&model, &By::Nobody, 2, 512);
        let plain = complete(&one, &mut batcher, greedy(prompt(1, 50), 40)).tokens[0].clone();
        let (scheduler, mut batcher) = speculating(&model, &By::Lookup(plain.clone()), 2, 512);
        let mut dropped = scheduler.submit(greedy(prompt(1, 50), 40)).unwrap();
        let mut output = Output::default();
        while output.tokens.first().is_none_or(|tokens| tokens.len() < 10) {
            batcher.step(false);
            drain_events(&mut dropped, &mut output);
        }
        assert_eq!(output.tokens[0], plain[..output.tokens[0].len()], "{name}");
        drop(dropped);
        batcher.step(false);
        let tokens_of: usize = batcher.slots(0).iter().map(|slot| slot.n_held).sum();
        assert_eq!(
            tokens_of,
            50 + output.tokens[0].len() - 1,
            "{name}: all tokens except the last are cached"
        );
        let next = [prompt(1, 50), output.tokens[0].clone()].concat();
        let n_uncomputed = plain.len() - output.tokens[0].len();
        let output = complete(&scheduler, &mut batcher, greedy(next, n_uncomputed));
        assert_eq!(output.tokens[0], plain[plain.len() - n_uncomputed..], "{name}");
        assert_eq!(output.prompt.map(|p| p.n_cached), Some(tokens_of), "{name}");
    }
}

#[test]
fn mtp_layer_drafts_tokens() {
    let registered = architectures().next().unwrap();
    let file = ModelFile::predictable(registered, true);
    let (model, n_vocab) = (file.load(true), file.n_vocab());
    // More completions than drafters; one completion continues another.
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
        let receivers = requests.map(|request| scheduler.submit(request).unwrap()).into();
        finish(&mut batcher, receivers)
    };
    let (plain, output) = (of(By::Nobody), of(By::Mtp(2)));
    for (output, plain) in output.iter().zip(&plain) {
        assert_eq!((&output.tokens, &output.ends), (&plain.tokens, &plain.ends));
    }
    let n = drafted(&output);
    assert!(n.n_right > 60, "{n:?}");
}

/// Drafting stops soon for a drafter that never guesses correctly.
#[test]
fn useless_drafter_is_dropped() {
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
        controller: DraftController::by_tokens(MAX_DRAFTS),
        drafters: Drafters::Some(vec![Box::new(Wrong)]),
    };
    let settings = Settings {
        n_parallel: 1,
        ..Settings::default()
    };
    let (scheduler, mut batcher) = Scheduler::with_batcher(context, settings, Some(speculation)).unwrap();
    let output = complete(&scheduler, &mut batcher, greedy(prompt(1, 5), 300));
    assert_eq!(output.tokens[0].len(), 300);
    // Three drafts per token would be 900.
    assert!(output.drafted.n_drafts < 60, "{:?}", output.drafted);
}
