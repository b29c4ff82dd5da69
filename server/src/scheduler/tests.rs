//! Scheduler tests with tiny models, one step at a time. Completions must not depend on concurrent requests,
//! and finished requests must release all resources.

mod adapters;
mod cache;
mod drafts;
mod images;

use ::tests::{context, model};
use engine::context::ContextParams;
use engine::sample::Token;
use tokio::sync::mpsc::error::TryRecvError;

use super::*;

const N_VOCAB: u32 = 128;

/// Creates a scheduler of `n_parallel` sequences and as many cached sequences over `n_ctx` cells.
fn scheduler(name: &str, n_parallel: usize, n_ctx: usize) -> (Scheduler, Batcher) {
    let change = |p: &mut ContextParams| {
        (p.n_ctx, p.n_seq_max, p.n_batch, p.n_ubatch) = (n_ctx, 2 * n_parallel, 64, 64);
    };
    let settings = Settings {
        n_parallel,
        max_waiting: 64,
        ..Settings::default()
    };
    Scheduler::with_batcher(context(&model(name), change), settings, None).unwrap()
}

/// Returns a prompt of `n` tokens that is unique for each `of`.
fn prompt(of: usize, n: usize) -> Vec<Token> {
    let token = |i: usize| ((i * 7 + of * 31 + i * of) % N_VOCAB as usize) as Token;
    (0..n).map(token).collect()
}

/// Returns a greedy request for `n` tokens with log probabilities.
fn greedy(prompt: Vec<Token>, n: usize) -> Request {
    Request {
        max_tokens: Some(n),
        sampler: engine::sample::SamplerParams::greedy(),
        logprobs: Some(0),
        ..Request::new(prompt)
    }
}

/// Collected events of a request.
#[derive(Debug, Default, PartialEq)]
struct Output {
    prompt: Option<PromptDone>,
    /// Tokens by choice.
    tokens: Vec<Vec<Token>>,
    ends: Vec<(usize, Finish)>,
    failed: Option<String>,
    progress: Vec<PromptProgress>,
    drafted: engine::speculate::Drafted,
}

/// Collects the pending events. Returns true if the request has ended.
fn drain_events(events: &mut UnboundedReceiver<Event>, output: &mut Output) -> bool {
    loop {
        match events.try_recv() {
            Ok(Event::Prompt(done)) => output.prompt = Some(done),
            Ok(Event::Token { choice, token, .. }) => {
                output.tokens.resize(output.tokens.len().max(choice + 1), Vec::new());
                output.tokens[choice].push(token);
            }
            Ok(Event::End {
                choice,
                finish,
                drafted,
                ..
            }) => {
                output.ends.push((choice, finish));
                output.drafted.n_drafts += drafted.n_drafts;
                output.drafted.n_right += drafted.n_right;
            }
            Ok(Event::Progress(progress)) => output.progress.push(progress),
            Ok(Event::Failed(text) | Event::Refused(text)) => output.failed = Some(text),
            Err(TryRecvError::Empty) => return false,
            Err(TryRecvError::Disconnected) => return true,
        }
    }
}

/// Runs the scheduler until all requests have ended.
fn finish(batcher: &mut Batcher, mut requests: Vec<UnboundedReceiver<Event>>) -> Vec<Output> {
    let mut output: Vec<Output> = requests.iter().map(|_| Output::default()).collect();
    for _ in 0..10_000 {
        batcher.step(false);
        let mut is_done = true;
        for (events, output) in requests.iter_mut().zip(&mut output) {
            is_done &= drain_events(events, output);
        }
        if is_done {
            return output;
        }
    }
    panic!("the requests do not finish: {output:?}");
}

/// Runs a single request.
fn complete(scheduler: &Scheduler, batcher: &mut Batcher, request: Request) -> Output {
    finish(batcher, vec![scheduler.submit(request).unwrap()]).remove(0)
}

const MODELS: [&str; 5] = [
    "llama-dense",
    "gemma3-dense",
    "mamba2-dense",
    "falcon-h1-dense",
    "deepseek2-moe",
];

#[test]
fn completions_are_independent_of_other_requests() {
    for name in MODELS {
        let lengths = [3, 70, 1, 40, 150, 33, 8, 90, 20];
        let requests = || lengths.iter().enumerate().map(|(i, &n)| greedy(prompt(i, n), 12));
        let alone: Vec<Output> = requests()
            .map(|request| {
                let (scheduler, mut batcher) = scheduler(name, 1, 512);
                complete(&scheduler, &mut batcher, request)
            })
            .collect();
        let (scheduler, mut batcher) = scheduler(name, 4, 512);
        let together = requests().map(|request| scheduler.submit(request).unwrap()).collect();
        for (i, (output, alone)) in finish(&mut batcher, together).iter().zip(&alone).enumerate() {
            assert_eq!(output.tokens, alone.tokens, "{name}: text {i}");
            assert_eq!(
                (output.tokens[0].len(), &output.ends),
                (12, &vec![(0, Finish::Limit)]),
                "{name}: {i}"
            );
        }
        assert_eq!(scheduler.gauges().n_running, 0);
    }
}

/// Completions that do not fit into the context are preempted and recomputed.
#[test]
fn preempted_completions_are_unchanged() {
    for name in ["llama-dense", "gemma3-dense", "falcon-h1-dense"] {
        let requests = || (0..4).map(|i| greedy(prompt(i, 20), 60));
        let (one, mut batcher) = scheduler(name, 1, 512);
        let alone: Vec<Output> = requests()
            .map(|request| complete(&one, &mut batcher, request))
            .collect();
        let (four, mut batcher) = scheduler(name, 4, 200);
        let together = requests().map(|request| four.submit(request).unwrap()).collect();
        let together = finish(&mut batcher, together);
        assert!(
            four.metrics().n_preempted.get() > 0,
            "{name}: expected at least one preemption"
        );
        for (output, alone) in together.iter().zip(&alone) {
            assert_eq!((&output.tokens, &output.ends), (&alone.tokens, &alone.ends), "{name}");
        }
    }
}

#[test]
fn completion_ends_at_full_context() {
    let (scheduler, mut batcher) = scheduler("llama-dense", 2, 96);
    let request = Request {
        max_tokens: None,
        ..greedy(prompt(1, 30), 0)
    };
    let output = complete(&scheduler, &mut batcher, request);
    // The last token is sampled but has no cell.
    assert_eq!(
        (output.tokens[0].len(), &output.ends[..]),
        (67, &[(0, Finish::ContextFull)][..])
    );
    assert!(matches!(
        scheduler.submit(greedy(prompt(1, 97), 1)),
        Err(SubmitError::TooLong {
            n_prompt: 97,
            n_ctx: 96
        })
    ));
    let full = complete(&scheduler, &mut batcher, greedy(prompt(1, 96), 5));
    assert_eq!(
        (full.tokens[0].len(), &full.ends[..]),
        (1, &[(0, Finish::ContextFull)][..])
    );
}

/// Cached prefixes are reused by an equal prompt, by a prompt that continues the completion, and by one that
/// shares a prefix.
#[test]
fn common_prefix_is_computed_once() {
    let (scheduler, mut batcher) = scheduler("llama-dense", 2, 512);
    let mut cached = |request: Request| {
        let output = complete(&scheduler, &mut batcher, request);
        (output.prompt.unwrap().n_cached, output.tokens[0].clone())
    };
    let first = cached(greedy(prompt(1, 50), 10));
    assert_eq!(first.0, 0);
    assert_eq!(
        cached(greedy(prompt(1, 50), 10)),
        (49, first.1.clone()),
        "the last token is recomputed for its logits"
    );
    // The last sampled token is not in the cache.
    let next = [prompt(1, 50), first.1.clone(), prompt(9, 5)].concat();
    assert_eq!(cached(greedy(next.clone(), 4)).0, 59);
    // A different continuation; cached sequences remain.
    let other = [prompt(1, 30), prompt(7, 30)].concat();
    assert_eq!(cached(greedy(other, 4)).0, 30);
    assert_eq!(cached(greedy(next, 1)).0, 64);
    let plain = Request {
        reuse: false,
        ..greedy(prompt(1, 50), 10)
    };
    assert_eq!(cached(plain), (0, first.1));
}

/// Recurrent states and sliding windows can only be continued at their end; results are correct in all cases.
#[test]
fn unshareable_prefix_is_recomputed() {
    for name in ["mamba2-dense", "falcon-h1-dense", "gemma3-dense"] {
        let (scheduler, mut batcher) = scheduler(name, 2, 512);
        let first = complete(&scheduler, &mut batcher, greedy(prompt(1, 60), 10));
        let next = [prompt(1, 60), first.tokens[0].clone(), prompt(9, 5)].concat();
        let other = [prompt(1, 20), prompt(7, 30)].concat();
        for (text, least) in [(next, 69), (other, 0), (prompt(1, 60), 0)] {
            let plain = Request {
                reuse: false,
                ..greedy(text.clone(), 8)
            };
            let again = complete(&scheduler, &mut batcher, greedy(text, 8));
            let plain = complete(&scheduler, &mut batcher, plain);
            assert_eq!(again.tokens, plain.tokens, "{name}");
            assert!(again.prompt.unwrap().n_cached >= least, "{name}");
        }
    }
}

#[test]
fn choices_share_prompt_with_separate_seeds() {
    for name in ["llama-dense", "mamba2-dense"] {
        let (scheduler, mut batcher) = scheduler(name, 4, 512);
        let request = |seed: u64, n: usize| {
            let mut request = greedy(prompt(2, 40), 10);
            request.n = n;
            request.reuse = false;
            request.sampler.temp = 1.0;
            request.sampler.seed = Some(seed);
            request
        };
        let output = complete(&scheduler, &mut batcher, request(5, 4));
        assert_eq!(
            scheduler.metrics().n_prompt.get(),
            40,
            "{name}: the prompt is processed once"
        );
        assert_eq!(output.ends.len(), 4);
        for (i, tokens) in output.tokens.iter().enumerate() {
            let alone = complete(&scheduler, &mut batcher, request(5 + i as u64, 1));
            assert_eq!(alone.tokens[0], *tokens, "{name}: continuation {i}");
            assert!(output.tokens[..i].iter().all(|other| other != tokens));
        }
        assert!(matches!(
            scheduler.submit(request(1, MAX_CHOICES + 1)),
            Err(SubmitError::Choices {
                n: 129,
                max: MAX_CHOICES
            })
        ));
        assert!(matches!(
            scheduler.submit(request(1, 0)),
            Err(SubmitError::Choices { .. })
        ));
    }
}

#[test]
fn short_prompt_overtakes_long_prefill() {
    let (scheduler, mut batcher) = scheduler("llama-dense", 4, 2048);
    let mut long = scheduler.submit(greedy(prompt(1, 1500), 1)).unwrap();
    batcher.step(false);
    let mut short = scheduler.submit(greedy(prompt(2, 100), 3)).unwrap();
    let (mut of_long, mut of_short) = (Output::default(), Output::default());
    let mut n_steps = 0;
    while !drain_events(&mut short, &mut of_short) {
        batcher.step(false);
        n_steps += 1;
    }
    drain_events(&mut long, &mut of_long);
    assert!(of_long.prompt.is_none(), "the long prompt is still in prefill");
    assert!(n_steps <= 8, "{n_steps}");
    // Running completions get a token in every step, even while prompts arrive.
    let mut text = scheduler.submit(greedy(prompt(3, 10), 30)).unwrap();
    let mut of_text = Output::default();
    batcher.step(false);
    drain_events(&mut text, &mut of_text);
    for n in 1..20 {
        assert_eq!(of_text.tokens[0].len(), n);
        batcher.step(false);
        drain_events(&mut text, &mut of_text);
    }
}

#[test]
fn scheduling_is_fair_between_clients() {
    let (scheduler, mut batcher) = scheduler("llama-dense", 2, 512);
    let of = |client: u64| Request {
        client,
        ..greedy(prompt(1, 5), 2)
    };
    let mut requests: Vec<_> = [1, 1, 1, 2].map(|client| scheduler.submit(of(client)).unwrap()).into();
    requests.push(scheduler.submit(Request { priority: 1, ..of(1) }).unwrap());
    let mut order = Vec::new();
    for _ in 0..50 {
        batcher.step(false);
        for (i, events) in requests.iter_mut().enumerate() {
            if drain_events(events, &mut Output::default()) && !order.contains(&i) {
                order.push(i);
            }
        }
    }
    // The high-priority request ends together with the one of the idle client. Requests that end in the same
    // step are listed by index.
    assert_eq!(order, [3, 4, 0, 1, 2]);
}

#[test]
fn dropped_receiver_cancels_request() {
    let (scheduler, mut batcher) = scheduler("llama-dense", 1, 512);
    let keep = scheduler.submit(greedy(prompt(1, 200), 5)).unwrap();
    let queued = scheduler.submit(greedy(prompt(2, 200), 5)).unwrap();
    batcher.step(false);
    assert_eq!((scheduler.gauges().n_running, scheduler.gauges().n_waiting), (1, 1));
    assert!(scheduler.gauges().n_busy > 0 && scheduler.gauges().n_busy == scheduler.gauges().n_used);
    drop(queued);
    batcher.step(false);
    assert_eq!((scheduler.gauges().n_running, scheduler.gauges().n_waiting), (1, 0));
    let before = scheduler.metrics().n_prompt.get();
    drop(keep);
    batcher.step(false);
    assert_eq!(
        (scheduler.gauges().n_running, scheduler.metrics().n_prompt.get()),
        (0, before)
    );
    assert_eq!(scheduler.metrics().n_abandoned.get(), 2);
    // The computed tokens remain cached but count as evictable.
    assert!(scheduler.gauges().n_busy == 0 && scheduler.gauges().n_used > 0);
}

#[test]
fn full_queue_rejects_requests() {
    let (scheduler, mut batcher) = scheduler("llama-dense", 1, 512);
    let submit = || scheduler.submit(greedy(prompt(1, 5), 2));
    let taken: Vec<_> = (0..64).map(|_| submit().unwrap()).collect();
    assert!(matches!(submit(), Err(SubmitError::Busy { n_waiting: 64, .. })));
    scheduler.close();
    assert!(matches!(submit(), Err(SubmitError::Closed | SubmitError::Busy { .. })));
    assert!(
        finish(&mut batcher, taken).iter().all(|output| output.ends.len() == 1),
        "accepted requests are completed"
    );
    assert!(matches!(submit(), Err(SubmitError::Closed)));
}

#[test]
fn invalid_requests_are_rejected() {
    let (scheduler, _) = scheduler("llama-dense", 1, 512);
    assert!(matches!(
        scheduler.submit(greedy(vec![], 1)),
        Err(SubmitError::EmptyPrompt)
    ));
    assert!(matches!(
        scheduler.submit(greedy(vec![128], 1)),
        Err(SubmitError::Token {
            token: 128,
            n_vocab: 128
        })
    ));
    let mut odd = greedy(vec![1], 1);
    odd.sampler.top_p = 7.0;
    assert!(matches!(scheduler.submit(odd), Err(SubmitError::Sampler(_))));
}

/// Log probabilities of a prompt equal those reported when its tokens were generated.
#[test]
fn prompt_logprobs_match_generation() {
    let (scheduler, mut batcher) = scheduler("llama-dense", 1, 512);
    let text = prompt(3, 100);
    let rated = Request {
        prompt_logprobs: true,
        logprobs: Some(2),
        ..greedy(text.clone(), 0)
    };
    let output = complete(&scheduler, &mut batcher, rated.clone());
    assert_eq!((output.tokens.len(), &output.ends[..]), (0, &[(0, Finish::Limit)][..]));
    let found = output.prompt.unwrap().logprobs;
    assert_eq!(found.iter().map(|l| l.token).collect::<Vec<_>>(), text[1..]);
    let again = complete(&scheduler, &mut batcher, rated).prompt.unwrap();
    assert_eq!((again.n_cached, again.logprobs), (0, found.clone()));
    for at in [1, 31, 32, 64, 99] {
        let mut events = scheduler.submit(Request {
            logprobs: Some(2),
            reuse: false,
            ..greedy(text[..at].to_vec(), 1)
        });
        let events = events.as_mut().unwrap();
        (0..5).for_each(|_| _ = batcher.step(false));
        let output = std::iter::from_fn(|| events.try_recv().ok()).find_map(|event| match event {
            Event::Token { logprob, .. } => logprob,
            _ => None,
        });
        let (output, found) = (output.unwrap(), &found[at - 1]);
        let pairs = output.top.iter().zip(&found.top);
        assert!(pairs.clone().count() == 2 && pairs.clone().all(|(a, b)| a.0 == b.0 && (a.1 - b.1).abs() < 1e-3));
    }
}

/// Hundreds of clients disconnect at random moments: while queued, in prefill, and while generating.
/// Afterwards no sequence is busy, no cell is lost, and results are unchanged.
#[test]
fn random_disconnects_leak_nothing() {
    for name in ["llama-dense", "gemma3-dense", "mamba2-dense", "falcon-h1-dense"] {
        let (scheduler, mut batcher) = scheduler(name, 4, 640);
        let question = || Request {
            reuse: false,
            ..greedy(prompt(77, 600), 20)
        };
        let before = complete(&scheduler, &mut batcher, question());
        let mut random = engine::sample::Rng::new(7, 0);
        let mut number = |n: usize| (random.uniform() * n as f64) as usize % n;
        let mut clients: Vec<UnboundedReceiver<Event>> = Vec::new();
        for i in 0..400 {
            let request = Request {
                n: 1 + number(3),
                ..greedy(prompt(number(5), 1 + number(300)), 1 + number(40))
            };
            // A full queue may reject the request, which is fine.
            clients.extend(scheduler.submit(request));
            if i % 3 == 0 && !clients.is_empty() {
                let dropped = number(clients.len());
                clients.swap_remove(dropped);
            }
            if number(3) > 0 {
                batcher.step(false);
            }
        }
        assert!(scheduler.metrics().n_abandoned.get() > 50, "{name}");
        clients.clear();
        batcher.step(false);
        let gauges = scheduler.gauges();
        assert_eq!((gauges.n_running, gauges.n_waiting), (0, 0), "{name}");
        // This request needs nearly all cells, so it fails if any are lost.
        let after = complete(&scheduler, &mut batcher, question());
        assert_eq!((&after.tokens, &after.ends), (&before.tokens, &before.ends), "{name}");
        let gauges_after = scheduler.gauges();
        assert_eq!(gauges_after.n_running, 0, "{name}");
        if gauges_after.is_limited {
            assert_eq!(gauges_after.n_kept, 1, "{name}: all other sequences were evicted");
            assert_eq!(
                gauges_after.n_used, 619,
                "{name}: prompt and completion without the last token"
            );
        }
    }
}

/// Observer that panics once, at the given node of a step.
struct Panics(usize);

impl engine::sched::Observer for Panics {
    fn observes(&mut self, _: &engine::graph::Graph, _: engine::graph::TensorId) -> bool {
        self.0 = self.0.wrapping_sub(1);
        assert!(self.0 != 0, "injected panic");
        false
    }

    fn show(&mut self, _: &engine::graph::Graph, _: engine::graph::TensorId, _: &[u8]) -> std::ops::ControlFlow<()> {
        std::ops::ControlFlow::Continue(())
    }
}

/// A panic fails the running requests; later requests succeed.
#[test]
fn panic_fails_only_running_requests() {
    let change = |p: &mut ContextParams| (p.n_ctx, p.n_seq_max, p.n_batch) = (512, 4, 64);
    let mut ctx = context(&model("llama-dense"), change);
    ctx.set_observer(Some(Box::new(Panics(500))));
    let settings = Settings {
        n_parallel: 2,
        ..Settings::default()
    };
    let scheduler = Scheduler::start(ctx, settings).unwrap();
    let ask = || {
        let mut events = scheduler.submit(greedy(prompt(1, 40), 20)).unwrap();
        let mut all = Vec::new();
        while let Some(event) = events.blocking_recv() {
            all.push(event);
        }
        all
    };
    let failed = ask();
    assert!(matches!(failed.last(), Some(Event::Failed(_))), "{failed:?}");
    let (one, two) = (ask(), ask());
    let tokens = |events: &[Event]| {
        events
            .iter()
            .filter(|event| matches!(event, Event::Token { .. }))
            .count()
    };
    assert_eq!((tokens(&one), tokens(&two)), (20, 20));
    assert!(scheduler.is_running() && scheduler.is_open());
}

/// A recurrent model has no context limit, so completions without a limit end at the training context length.
#[test]
fn completion_ends_at_training_context_length() {
    let (scheduler, mut batcher) = scheduler("mamba2-dense", 1, 512);
    let n_train = scheduler.model().base().n_ctx_train();
    let request = Request {
        max_tokens: None,
        ..greedy(prompt(1, 5), 0)
    };
    let output = complete(&scheduler, &mut batcher, request);
    assert_eq!(
        (output.tokens[0].len(), &output.ends[..]),
        (n_train, &[(0, Finish::Limit)][..])
    );
}

/// A request past its deadline ends with its output so far: no tokens while queued, some tokens while
/// running.
#[test]
fn deadline_ends_requests() {
    let (scheduler, mut batcher) = scheduler("llama-dense", 1, 512);
    let within = |ms: u64, of: usize| Request {
        deadline: Some(std::time::Duration::from_millis(ms)),
        ..greedy(prompt(of, 5), 400)
    };
    let other = scheduler.submit(greedy(prompt(1, 5), 20)).unwrap();
    let late = scheduler.submit(within(0, 2)).unwrap();
    let output = finish(&mut batcher, vec![other, late]);
    assert_eq!(output[0].tokens[0].len(), 20);
    assert_eq!(output[1].ends, [(0, Finish::Limit)]);
    assert!(output[1].tokens.is_empty() && output[1].prompt.as_ref().is_some_and(|done| done.n_prompt == 5));
    let running = scheduler.submit(within(200, 3)).unwrap();
    for _ in 0..3 {
        batcher.step(false);
    }
    std::thread::sleep(std::time::Duration::from_millis(201));
    let output = finish(&mut batcher, vec![running]);
    assert_eq!(output[0].ends, [(0, Finish::Limit)]);
    assert!(output[0].tokens.iter().map(Vec::len).sum::<usize>() < 400);
    assert_eq!(scheduler.gauges().n_running, 0);
}

/// Clients on several threads use a scheduler with its own thread.
#[test]
fn scheduler_thread_serves_many_clients() {
    let change = |p: &mut ContextParams| (p.n_ctx, p.n_seq_max, p.n_batch) = (1024, 8, 64);
    let settings = Settings {
        n_parallel: 4,
        ..Settings::default()
    };
    let scheduler = Scheduler::start(context(&model("llama-dense"), change), settings).unwrap();
    let ask = |of: usize| {
        let mut events = scheduler.submit(greedy(prompt(of, 30 + of), 10)).unwrap();
        let mut tokens = Vec::new();
        while let Some(event) = events.blocking_recv() {
            if let Event::Token { token, .. } = event {
                tokens.push(token);
            }
        }
        tokens
    };
    let alone: Vec<_> = (0..12).map(ask).collect();
    let together: Vec<_> = std::thread::scope(|scope| {
        let asked: Vec<_> = (0..12).map(|of| scope.spawn(move || ask(of))).collect();
        asked.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(together, alone);
    assert!(alone.iter().all(|tokens| tokens.len() == 10));
}

#[test]
fn too_small_context_is_rejected() {
    let m = model("llama-dense");
    let start = |n_parallel, change: fn(&mut ContextParams)| {
        let settings = Settings {
            n_parallel,
            ..Settings::default()
        };
        Scheduler::start(context(&m, change), settings).err()
    };
    assert!(matches!(
        start(2, |_| ()),
        Some(StartError::Context { n_seq_max: 1, .. })
    ));
    let small = |p: &mut ContextParams| (p.n_seq_max, p.n_batch) = (4, 2);
    assert!(matches!(start(4, small), Some(StartError::Context { n_batch: 2, .. })));
    assert!(matches!(start(0, |_| ()), Some(StartError::Context { .. })));
}
