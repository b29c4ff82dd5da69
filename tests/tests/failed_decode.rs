//! A decode that fails in any ubatch leaves the context unchanged: later results are bit-identical to a run
//! without the failure.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::context::{Batch, Context, DecodeError, SeqSet};
use engine::graph::{Graph, TensorId};
use engine::model::Model;
use engine::sched::Observer;
use tests::{context, decode_last, fixture_names, model, tokens};

const HELD: usize = 64;
const N_BATCH: usize = 64;
const N_UBATCH: usize = 16;

/// Kind of failure to inject.
#[derive(Clone, Copy, Debug)]
enum Failure {
    /// The cancel flag is set before this ubatch.
    Cancelled(usize),
    /// The backend stops in the middle of this ubatch, after some layers have written their keys.
    InGraph(usize),
}

/// Observer that counts ubatches and triggers the failure.
struct Saboteur {
    failure: Failure,
    cancel: Arc<AtomicBool>,
    n_done: usize,
}

impl Observer for Saboteur {
    fn observes(&mut self, graph: &Graph, node: TensorId) -> bool {
        let nodes = graph.nodes();
        node == nodes[nodes.len() / 2] || node == nodes[nodes.len() - 1]
    }

    fn show(&mut self, graph: &Graph, node: TensorId, _: &[u8]) -> ControlFlow<()> {
        let is_last = graph.nodes().last() == Some(&node);
        self.n_done += usize::from(is_last);
        match self.failure {
            Failure::Cancelled(ubatch) => self.cancel.store(self.n_done >= ubatch, Ordering::Relaxed),
            Failure::InGraph(ubatch) if !is_last && self.n_done == ubatch => return ControlFlow::Break(()),
            Failure::InGraph(_) => {}
        }
        ControlFlow::Continue(())
    }
}

/// Creates a context with [`HELD`] tokens.
fn filled(model: &Arc<Model>, tokens: &[u32]) -> Context {
    let mut ctx = context(model, |p| {
        (p.n_ctx, p.n_batch, p.n_ubatch, p.n_outputs_max) = (256, N_BATCH, N_UBATCH, N_UBATCH);
    });
    decode_last(&mut ctx, &tokens[..HELD], 0, 0);
    ctx
}

/// Returns a batch with the following tokens.
fn next(tokens: &[u32]) -> Batch {
    let mut batch = Batch::new();
    for (i, &token) in tokens[HELD..HELD + N_BATCH].iter().enumerate() {
        batch.push(token, HELD + i, SeqSet::one(0), true);
    }
    batch
}

fn logits(ctx: &Context) -> Vec<f32> {
    (0..N_BATCH)
        .flat_map(|i| ctx.logits(i).expect("every token has output"))
        .copied()
        .collect()
}

fn fail(ctx: &mut Context, batch: &Batch, failure: Failure) -> DecodeError {
    let cancel = Arc::new(AtomicBool::new(matches!(failure, Failure::Cancelled(0))));
    ctx.set_cancel(Some(cancel.clone()));
    ctx.set_observer(Some(Box::new(Saboteur {
        failure,
        cancel,
        n_done: 0,
    })));
    let error = ctx.decode(batch).expect_err("the observer stops the decode");
    ctx.set_observer(None);
    ctx.set_cancel(None);
    error
}

/// Fails at each ubatch of a batch in each way, then continues.
fn goes_on_after_failures(name: &str) {
    let m = model(name);
    if m.arch().bidirectional {
        return;
    }
    let recorded = tokens(name);
    let text: Vec<u32> = recorded.iter().cycle().take(HELD + N_BATCH).copied().collect();
    let batch = next(&text);
    let mut undisturbed = filled(&m, &text);
    undisturbed.decode(&batch).unwrap();
    let expected = logits(&undisturbed);
    for ubatch in 0..N_BATCH / N_UBATCH {
        for failure in [Failure::Cancelled(ubatch), Failure::InGraph(ubatch)] {
            let mut ctx = filled(&m, &text);
            let n_used = ctx.n_used();
            let error = fail(&mut ctx, &batch, failure);
            assert!(
                matches!(error, DecodeError::Cancelled | DecodeError::Sched(_)),
                "{name}: {failure:?}: {error}"
            );
            assert_eq!(ctx.n_past(0), HELD, "{name}: {failure:?}");
            assert!(ctx.n_used() <= n_used, "{name}: {failure:?}");
            ctx.decode(&batch)
                .unwrap_or_else(|e| panic!("{name}: {failure:?}: {e}"));
            assert!(logits(&ctx) == expected, "{name}: {failure:?} changes later results");
        }
    }
}

/// Covers sliding windows, token groups, recurrent state, hybrids, an encoder-decoder, and plain attention.
#[test]
fn failed_decode_leaves_context_unchanged() {
    for name in [
        "llama-dense",
        "gemma3-dense",
        "gpt-oss-moe",
        "llama4-moe",
        "deepseek4-moe",
        "lfm2-dense",
        "mamba-dense",
        "qwen3next-moe",
        "t5-dense",
    ] {
        goes_on_after_failures(name);
    }
}

#[test]
#[ignore = "runs every fixture nine times"]
fn failed_decode_leaves_context_unchanged_in_every_fixture() {
    for name in &fixture_names() {
        goes_on_after_failures(name);
    }
}
