//! LoRA adapters of requests: a request must not depend on the scales of concurrent or earlier requests.

use ::tests::layouts::lora;
use tokio::sync::oneshot;

use super::*;

const WEIGHTS: [&str; 2] = ["blk.0.attn_q.weight", "blk.1.ffn_down.weight"];

/// Creates a scheduler with two adapters and their scales.
fn adapted(name: &str, scales: [f32; 2]) -> (Scheduler, Batcher) {
    let m = model(name);
    let mut context = context(&m, |p| {
        (p.n_ctx, p.n_seq_max, p.n_batch, p.n_ubatch) = (1024, 8, 64, 64)
    });
    let adapters: Vec<_> = WEIGHTS.iter().map(|weight| lora(&m, weight)).zip(scales).collect();
    context.set_adapters(&adapters).unwrap();
    let settings = Settings {
        n_parallel: 4,
        max_waiting: 64,
        ..Settings::default()
    };
    Scheduler::with_batcher(context, settings, None).unwrap()
}

/// Returns a request with these scales, or with the scales of the server.
fn request(scales: Option<[f32; 2]>) -> Request {
    Request {
        lora: scales.map(|scales| scales.into_iter().enumerate().collect()),
        ..greedy(prompt(3, 40), 12)
    }
}

const CASES: [Option<[f32; 2]>; 4] = [None, Some([0.0, 0.0]), Some([2.0, 0.0]), Some([-1.0, 3.0])];
const SERVER: [f32; 2] = [0.0, 2.0];

/// Returns the tokens of each of `CASES`, computed by servers with these scales.
fn expected(name: &str) -> Vec<Vec<Token>> {
    let of_server = |scales: Option<[f32; 2]>| {
        let (scheduler, mut batcher) = adapted(name, scales.unwrap_or(SERVER));
        complete(&scheduler, &mut batcher, request(None)).tokens.remove(0)
    };
    CASES.map(of_server).to_vec()
}

#[test]
fn requests_with_different_scales_share_batches() {
    for name in ["llama-dense", "qwen3-dense"] {
        let expected = expected(name);
        for (i, tokens) in expected.iter().enumerate() {
            assert!(
                !expected[..i].contains(tokens),
                "{name}: the scales of case {i} have no effect"
            );
        }
        let (scheduler, mut batcher) = adapted(name, SERVER);
        for round in 0..2 {
            let all = CASES.map(|scales| scheduler.submit(request(scales)).unwrap());
            let outputs = finish(&mut batcher, all.into());
            for (output, expected) in outputs.iter().zip(&expected) {
                assert_eq!(output.failed, None);
                assert_eq!(output.tokens[0], *expected, "{name}, round {round}");
                let n_cached = output.prompt.as_ref().unwrap().n_cached;
                assert_eq!(
                    n_cached,
                    [0, 39][round],
                    "{name}: tokens of other scales are not reused"
                );
            }
        }
    }
}

#[test]
fn choices_use_the_scales_of_their_request() {
    let (scheduler, mut batcher) = adapted("llama-dense", SERVER);
    let expected = &expected("llama-dense")[3];
    let of_request = Request {
        n: 6,
        ..request(CASES[3])
    };
    let output = complete(&scheduler, &mut batcher, of_request);
    assert_eq!(output.tokens, vec![expected.clone(); 6]);
    let with_default_scales = Request { n: 3, ..request(None) };
    let output = complete(&scheduler, &mut batcher, with_default_scales);
    assert_eq!(output.tokens, vec![self::expected("llama-dense")[0].clone(); 3]);
}

#[test]
fn explicit_scales_of_the_server_reuse_its_cache() {
    let (scheduler, mut batcher) = adapted("llama-dense", SERVER);
    let mut n_cached = |scales| {
        let output = complete(&scheduler, &mut batcher, request(scales));
        output.prompt.unwrap().n_cached
    };
    assert_eq!(
        [None, Some(SERVER), CASES[1], CASES[1], None].map(&mut n_cached),
        [0, 39, 0, 39, 39]
    );
}

#[test]
fn changed_scales_of_the_server_apply_after_requests_with_own_scales() {
    let expected = expected("llama-dense");
    let (scheduler, mut batcher) = adapted("llama-dense", SERVER);
    for (i, scales) in [(3, CASES[3]), (0, None)] {
        let output = complete(&scheduler, &mut batcher, request(scales));
        assert_eq!(output.tokens[0], expected[i], "case {i}");
    }
    let (reply, mut result) = oneshot::channel();
    let scales = vec![(0, 2.0)];
    scheduler.inbox.command(Command::SetAdapterScales { scales, reply });
    batcher.step(false);
    result.try_recv().unwrap().unwrap();
    for (i, scales) in [(2, None), (1, CASES[1])] {
        let output = complete(&scheduler, &mut batcher, request(scales));
        assert_eq!(output.tokens[0], expected[i], "case {i} after the change");
        assert_eq!(output.prompt.unwrap().n_cached, 0);
    }
}

#[test]
fn unknown_adapter_is_rejected() {
    let (scheduler, _batcher) = adapted("llama-dense", SERVER);
    let rejected = scheduler.submit(Request {
        lora: Some(vec![(2, 1.0)]),
        ..request(None)
    });
    assert!(
        matches!(rejected, Err(SubmitError::Adapter { id: 2, n: 2 })),
        "{rejected:?}"
    );
}
