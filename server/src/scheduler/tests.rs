//! The scheduler with tiny models, driven step by step: what a text is does not depend on what else goes on, and nothing is left of what is over.

mod drafts;

use ::tests::{context, model};
use engine::context::ContextParams;
use tokio::sync::mpsc::error::TryRecvError;

use super::*;

const N_VOCAB: u32 = 128;

/// A scheduler of `n_parallel` sequences over `n_ctx` cells, with as many sequences to keep things in.
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

/// A text of its own for each number.
fn prompt(of: usize, n: usize) -> Vec<Token> {
    let token = |i: usize| ((i * 7 + of * 31 + i * of) % N_VOCAB as usize) as Token;
    (0..n).map(token).collect()
}

/// The most likely tokens that follow a prompt, told with their probabilities.
fn greedy(prompt: Vec<Token>, n: usize) -> Request {
    Request {
        max_tokens: Some(n),
        sampler: engine::sample::SamplerParams::greedy(),
        logprobs: Some(0),
        ..Request::new(prompt)
    }
}

/// What was told of a request.
#[derive(Debug, Default, PartialEq)]
struct Told {
    prompt: Option<PromptDone>,
    /// Tokens by choice.
    tokens: Vec<Vec<Token>>,
    ends: Vec<(usize, Finish)>,
    failed: Option<String>,
    drafted: engine::speculate::Drafted,
}

/// Takes what has been told so far. True if there will be no more.
fn listen(events: &mut UnboundedReceiver<Event>, told: &mut Told) -> bool {
    loop {
        match events.try_recv() {
            Ok(Event::Prompt(done)) => told.prompt = Some(done),
            Ok(Event::Token { choice, token, .. }) => {
                told.tokens.resize(told.tokens.len().max(choice + 1), Vec::new());
                told.tokens[choice].push(token);
            }
            Ok(Event::End {
                choice,
                finish,
                drafted,
                ..
            }) => {
                told.ends.push((choice, finish));
                told.drafted.n_drafts += drafted.n_drafts;
                told.drafted.n_right += drafted.n_right;
            }
            Ok(Event::Failed(text)) => told.failed = Some(text),
            Err(TryRecvError::Empty) => return false,
            Err(TryRecvError::Disconnected) => return true,
        }
    }
}

/// Works until all requests are done.
fn finish(batcher: &mut Batcher, mut requests: Vec<UnboundedReceiver<Event>>) -> Vec<Told> {
    let mut told: Vec<Told> = requests.iter().map(|_| Told::default()).collect();
    for _ in 0..10_000 {
        batcher.step(false);
        let mut is_done = true;
        for (events, told) in requests.iter_mut().zip(&mut told) {
            is_done &= listen(events, told);
        }
        if is_done {
            return told;
        }
    }
    panic!("it goes on for ever: {told:?}");
}

/// The answer to one request.
fn answer(scheduler: &Scheduler, batcher: &mut Batcher, request: Request) -> Told {
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
fn texts_are_the_same_alone_and_among_others() {
    for name in MODELS {
        let lengths = [3, 70, 1, 40, 150, 33, 8, 90, 20];
        let requests = || lengths.iter().enumerate().map(|(i, &n)| greedy(prompt(i, n), 12));
        let alone: Vec<Told> = requests()
            .map(|request| {
                let (scheduler, mut batcher) = scheduler(name, 1, 512);
                answer(&scheduler, &mut batcher, request)
            })
            .collect();
        let (scheduler, mut batcher) = scheduler(name, 4, 512);
        let together = requests().map(|request| scheduler.submit(request).unwrap()).collect();
        for (i, (told, alone)) in finish(&mut batcher, together).iter().zip(&alone).enumerate() {
            assert_eq!(told.tokens, alone.tokens, "{name}: text {i}");
            assert_eq!(
                (told.tokens[0].len(), &told.ends),
                (12, &vec![(0, Finish::Limit)]),
                "{name}: {i}"
            );
        }
        assert_eq!(scheduler.gauges().n_running, 0);
    }
}

/// Texts that grow beyond the room there is give way to older ones and are computed anew.
#[test]
fn texts_are_the_same_when_there_is_too_little_room() {
    for name in ["llama-dense", "gemma3-dense", "falcon-h1-dense"] {
        let requests = || (0..4).map(|i| greedy(prompt(i, 20), 60));
        let (one, mut batcher) = scheduler(name, 1, 512);
        let alone: Vec<Told> = requests().map(|request| answer(&one, &mut batcher, request)).collect();
        let (four, mut batcher) = scheduler(name, 4, 200);
        let together = requests().map(|request| four.submit(request).unwrap()).collect();
        let together = finish(&mut batcher, together);
        assert!(four.metrics().n_preempted.get() > 0, "{name}: all of it fits");
        for (told, alone) in together.iter().zip(&alone) {
            assert_eq!((&told.tokens, &told.ends), (&alone.tokens, &alone.ends), "{name}");
        }
    }
}

#[test]
fn a_text_ends_where_the_context_does() {
    let (scheduler, mut batcher) = scheduler("llama-dense", 2, 96);
    let request = Request {
        max_tokens: None,
        ..greedy(prompt(1, 30), 0)
    };
    let told = answer(&scheduler, &mut batcher, request);
    // The last one is chosen and finds no place.
    assert_eq!(
        (told.tokens[0].len(), &told.ends[..]),
        (67, &[(0, Finish::ContextFull)][..])
    );
    assert!(matches!(
        scheduler.submit(greedy(prompt(1, 97), 1)),
        Err(SubmitError::TooLong {
            n_prompt: 97,
            n_ctx: 96
        })
    ));
    let full = answer(&scheduler, &mut batcher, greedy(prompt(1, 96), 5));
    assert_eq!(
        (full.tokens[0].len(), &full.ends[..]),
        (1, &[(0, Finish::ContextFull)][..])
    );
}

/// What was computed once is not computed again: by the same prompt, by one that goes on from the answer, and by one that shares its beginning.
#[test]
fn beginnings_are_computed_once() {
    let (scheduler, mut batcher) = scheduler("llama-dense", 2, 512);
    let mut cached = |request: Request| {
        let told = answer(&scheduler, &mut batcher, request);
        (told.prompt.unwrap().n_cached, told.tokens[0].clone())
    };
    let first = cached(greedy(prompt(1, 50), 10));
    assert_eq!(first.0, 0);
    assert_eq!(
        cached(greedy(prompt(1, 50), 10)),
        (49, first.1.clone()),
        "the last token gives the logits"
    );
    // What the model said last has not been computed.
    let next = [prompt(1, 50), first.1.clone(), prompt(9, 5)].concat();
    assert_eq!(cached(greedy(next.clone(), 4)).0, 59);
    // Another end; what the others hold stays.
    let other = [prompt(1, 30), prompt(7, 30)].concat();
    assert_eq!(cached(greedy(other, 4)).0, 30);
    assert_eq!(cached(greedy(next, 1)).0, 64);
    let plain = Request {
        reuse: false,
        ..greedy(prompt(1, 50), 10)
    };
    assert_eq!(cached(plain), (0, first.1));
}

/// Recurrent states and windows remember the end of a text only: what goes on there is not computed again, and answers are right in any case.
#[test]
fn what_cannot_be_shared_is_computed_again() {
    for name in ["mamba2-dense", "falcon-h1-dense", "gemma3-dense"] {
        let (scheduler, mut batcher) = scheduler(name, 2, 512);
        let first = answer(&scheduler, &mut batcher, greedy(prompt(1, 60), 10));
        let next = [prompt(1, 60), first.tokens[0].clone(), prompt(9, 5)].concat();
        let other = [prompt(1, 20), prompt(7, 30)].concat();
        for (text, least) in [(next, 69), (other, 0), (prompt(1, 60), 0)] {
            let plain = Request {
                reuse: false,
                ..greedy(text.clone(), 8)
            };
            let again = answer(&scheduler, &mut batcher, greedy(text, 8));
            let plain = answer(&scheduler, &mut batcher, plain);
            assert_eq!(again.tokens, plain.tokens, "{name}");
            assert!(again.prompt.unwrap().n_cached >= least, "{name}");
        }
    }
}

#[test]
fn continuations_share_their_prompt_and_have_random_numbers_of_their_own() {
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
        let told = answer(&scheduler, &mut batcher, request(5, 4));
        assert_eq!(scheduler.metrics().n_prompt.get(), 40, "{name}: once for all");
        assert_eq!(told.ends.len(), 4);
        for (i, tokens) in told.tokens.iter().enumerate() {
            let alone = answer(&scheduler, &mut batcher, request(5 + i as u64, 1));
            assert_eq!(alone.tokens[0], *tokens, "{name}: continuation {i}");
            assert!(told.tokens[..i].iter().all(|other| other != tokens));
        }
        assert!(matches!(
            scheduler.submit(request(1, 5)),
            Err(SubmitError::Choices { n: 5, max: 4 })
        ));
        assert!(matches!(
            scheduler.submit(request(1, 0)),
            Err(SubmitError::Choices { .. })
        ));
    }
}

#[test]
fn a_short_prompt_does_not_wait_for_a_long_one() {
    let (scheduler, mut batcher) = scheduler("llama-dense", 4, 2048);
    let mut long = scheduler.submit(greedy(prompt(1, 1500), 1)).unwrap();
    batcher.step(false);
    let mut short = scheduler.submit(greedy(prompt(2, 100), 3)).unwrap();
    let (mut of_long, mut of_short) = (Told::default(), Told::default());
    let mut n_steps = 0;
    while !listen(&mut short, &mut of_short) {
        batcher.step(false);
        n_steps += 1;
    }
    listen(&mut long, &mut of_long);
    assert!(of_long.prompt.is_none(), "the long one is still being computed");
    assert!(n_steps <= 8, "{n_steps}");
    // Texts under way get a token in every step, whatever prompts come.
    let mut text = scheduler.submit(greedy(prompt(3, 10), 30)).unwrap();
    let mut of_text = Told::default();
    batcher.step(false);
    listen(&mut text, &mut of_text);
    for n in 1..20 {
        assert_eq!(of_text.tokens[0].len(), n);
        batcher.step(false);
        listen(&mut text, &mut of_text);
    }
}

#[test]
fn clients_take_turns() {
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
            if listen(events, &mut Told::default()) && !order.contains(&i) {
                order.push(i);
            }
        }
    }
    // The urgent one is done beside that of the client of which nothing was; those that end together are listed by number.
    assert_eq!(order, [3, 4, 0, 1, 2]);
}

#[test]
fn what_nobody_waits_for_is_not_done() {
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
    // What was computed is kept, and counts as needed by nobody.
    assert!(scheduler.gauges().n_busy == 0 && scheduler.gauges().n_used > 0);
}

#[test]
fn no_more_wait_than_agreed() {
    let (scheduler, mut batcher) = scheduler("llama-dense", 1, 512);
    let submit = || scheduler.submit(greedy(prompt(1, 5), 2));
    let taken: Vec<_> = (0..64).map(|_| submit().unwrap()).collect();
    assert!(matches!(submit(), Err(SubmitError::Busy { n_waiting: 64, .. })));
    scheduler.close();
    assert!(matches!(submit(), Err(SubmitError::Closed | SubmitError::Busy { .. })));
    assert!(
        finish(&mut batcher, taken).iter().all(|told| told.ends.len() == 1),
        "what was taken is done"
    );
    assert!(matches!(submit(), Err(SubmitError::Closed)));
}

#[test]
fn requests_that_cannot_be_are_refused() {
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

/// Log probabilities of a prompt are those that its tokens have when they are generated.
#[test]
fn prompts_are_rated() {
    let (scheduler, mut batcher) = scheduler("llama-dense", 1, 512);
    let text = prompt(3, 100);
    let rated = Request {
        prompt_logprobs: true,
        logprobs: Some(2),
        ..greedy(text.clone(), 0)
    };
    let told = answer(&scheduler, &mut batcher, rated.clone());
    assert_eq!((told.tokens.len(), &told.ends[..]), (0, &[(0, Finish::Limit)][..]));
    let found = told.prompt.unwrap().logprobs;
    assert_eq!(found.iter().map(|l| l.token).collect::<Vec<_>>(), text[1..]);
    let again = answer(&scheduler, &mut batcher, rated).prompt.unwrap();
    assert_eq!((again.n_cached, again.logprobs), (0, found.clone()));
    for at in [1, 31, 32, 64, 99] {
        let mut events = scheduler.submit(Request {
            logprobs: Some(2),
            reuse: false,
            ..greedy(text[..at].to_vec(), 1)
        });
        let events = events.as_mut().unwrap();
        (0..5).for_each(|_| _ = batcher.step(false));
        let told = std::iter::from_fn(|| events.try_recv().ok()).find_map(|event| match event {
            Event::Token { logprob, .. } => logprob,
            _ => None,
        });
        let (told, found) = (told.unwrap(), &found[at - 1]);
        let pairs = told.top.iter().zip(&found.top);
        assert!(pairs.clone().count() == 2 && pairs.clone().all(|(a, b)| a.0 == b.0 && (a.1 - b.1).abs() < 1e-3));
    }
}

/// Hundreds of clients that go at random moments: in the queue, in the middle of a prompt, of an answer, between them. Afterwards nothing is busy, no
/// cell is lost, and answers are as before.
#[test]
fn nothing_is_left_of_clients_that_go() {
    for name in ["llama-dense", "gemma3-dense", "mamba2-dense", "falcon-h1-dense"] {
        let (scheduler, mut batcher) = scheduler(name, 4, 640);
        let question = || Request {
            reuse: false,
            ..greedy(prompt(77, 600), 20)
        };
        let before = answer(&scheduler, &mut batcher, question());
        let mut random = engine::sample::Rng::new(7, 0);
        let mut number = |n: usize| (random.uniform() * n as f64) as usize % n;
        let mut clients: Vec<UnboundedReceiver<Event>> = Vec::new();
        for i in 0..400 {
            let request = Request {
                n: 1 + number(3),
                ..greedy(prompt(number(5), 1 + number(300)), 1 + number(40))
            };
            // Where too many wait it is refused, which is right as well.
            clients.extend(scheduler.submit(request));
            if i % 3 == 0 && !clients.is_empty() {
                let gone = number(clients.len());
                clients.swap_remove(gone);
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
        // It needs nearly all cells: none is lost.
        let after = answer(&scheduler, &mut batcher, question());
        assert_eq!((&after.tokens, &after.ends), (&before.tokens, &before.ends), "{name}");
        let kept = scheduler.gauges();
        assert_eq!(kept.n_running, 0, "{name}");
        if kept.is_limited {
            assert_eq!(kept.n_kept, 1, "{name}: all else had to go");
            assert_eq!(kept.n_used, 619, "{name}: prompt and answer but for its last token");
        }
    }
}

/// Panics once, at a node in the middle of a step.
struct Panics(usize);

impl engine::sched::Observer for Panics {
    fn wants(&mut self, _: &engine::graph::Graph, _: engine::graph::TensorId) -> bool {
        self.0 = self.0.wrapping_sub(1);
        assert!(self.0 != 0, "as told");
        false
    }

    fn show(&mut self, _: &engine::graph::Graph, _: engine::graph::TensorId, _: &[u8]) -> std::ops::ControlFlow<()> {
        std::ops::ControlFlow::Continue(())
    }
}

/// What fails takes with it what is under way, and the next request is answered as ever.
#[test]
fn a_panic_ends_what_is_under_way_and_nothing_else() {
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

/// A recurrent model has room for any text: one for which nobody says how long it may be ends where the model's training did.
#[test]
fn texts_end_where_nothing_else_ends_them() {
    let (scheduler, mut batcher) = scheduler("mamba2-dense", 1, 512);
    let n_train = scheduler.model().base().n_ctx_train();
    let request = Request {
        max_tokens: None,
        ..greedy(prompt(1, 5), 0)
    };
    let told = answer(&scheduler, &mut batcher, request);
    assert_eq!(
        (told.tokens[0].len(), &told.ends[..]),
        (n_train, &[(0, Finish::Limit)][..])
    );
}

/// What has no time left ends with what it has: nothing, where it waits, and some tokens, where it is worked on.
#[test]
fn what_has_had_its_time_ends() {
    let (scheduler, mut batcher) = scheduler("llama-dense", 1, 512);
    let within = |ms: u64, of: usize| Request {
        deadline: Some(std::time::Duration::from_millis(ms)),
        ..greedy(prompt(of, 5), 400)
    };
    let other = scheduler.submit(greedy(prompt(1, 5), 20)).unwrap();
    let late = scheduler.submit(within(0, 2)).unwrap();
    let told = finish(&mut batcher, vec![other, late]);
    assert_eq!(told[0].tokens[0].len(), 20);
    assert_eq!(told[1].ends, [(0, Finish::Limit)]);
    assert!(told[1].tokens.is_empty() && told[1].prompt.as_ref().is_some_and(|done| done.n_prompt == 5));
    let running = scheduler.submit(within(200, 3)).unwrap();
    for _ in 0..3 {
        batcher.step(false);
    }
    std::thread::sleep(std::time::Duration::from_millis(201));
    let told = finish(&mut batcher, vec![running]);
    assert_eq!(told[0].ends, [(0, Finish::Limit)]);
    assert!(told[0].tokens.iter().map(Vec::len).sum::<usize>() < 400);
    assert_eq!(scheduler.gauges().n_running, 0);
}

/// The same by a thread of its own, with clients on threads of theirs.
#[test]
fn a_thread_works_for_many_clients() {
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
fn a_context_that_is_too_small_is_refused() {
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
