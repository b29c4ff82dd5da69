//! Cancellation takes effect within one graph node on every device.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use engine::context::{Batch, DecodeError};
use engine::graph::{Graph, TensorId};
use engine::sched::Observer;
use tests::{context, decode_last, exact, fixture, place_on, tokens};

/// Sets a flag after `n` nodes and keeps counting.
struct CancelAt {
    n: usize,
    seen: Arc<AtomicUsize>,
    flag: Arc<AtomicBool>,
}

impl Observer for CancelAt {
    fn observes(&mut self, _: &Graph, _: TensorId) -> bool {
        true
    }

    fn show(&mut self, _: &Graph, _: TensorId, _: &[u8]) -> ControlFlow<()> {
        if self.seen.fetch_add(1, Ordering::Relaxed) + 1 == self.n {
            self.flag.store(true, Ordering::Relaxed);
        }
        ControlFlow::Continue(())
    }
}

#[test]
fn cancel_stops_after_current_node() {
    let (name, n_prompt) = ("qwen3-dense", 24);
    let tokens = tokens(name);
    for device in ["cpu", "reference"] {
        let mut params = exact();
        place_on(&mut params.load, device, 99);
        let model = fixture(name).model(archs::ALL, &params).expect("the model loads");
        let mut ctx = context(&model, |_| {});
        let undisturbed = decode_last(&mut ctx, &tokens[..n_prompt], 0, 0);
        ctx.clear();
        let mut batch = Batch::new();
        batch.push_prompt(&tokens[..n_prompt], 0, 0);
        for n in [1, 7, 40] {
            let (seen, flag) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
            ctx.set_cancel(Some(flag.clone()));
            ctx.set_observer(Some(Box::new(CancelAt {
                n,
                seen: seen.clone(),
                flag,
            })));
            assert!(matches!(ctx.decode(&batch), Err(DecodeError::Cancelled)), "{device}");
            assert_eq!(seen.load(Ordering::Relaxed), n, "{device}");
            assert_eq!(ctx.n_past(0), 0);
            ctx.set_cancel(None);
            ctx.set_observer(None);
            assert!(decode_last(&mut ctx, &tokens[..n_prompt], 0, 0) == undisturbed);
            ctx.clear();
        }
    }
}
