//! Steady-state decode allocates nothing: every thread of the process is watched while tokens are generated.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::context::{Batch, SeqSet};
use tests::{context, decode_last, model};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from the system's allocator with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn decoding_single_tokens_allocates_nothing() {
    for name in ["llama-dense", "llama-moe", "qwen3-dense", "gemma3-dense"] {
        let tokens = tests::tokens(name);
        let mut ctx = context(&model(name), |p| p.n_ctx = 1024);
        decode_last(&mut ctx, &tokens[..16], 0, 0);
        let mut batch = Batch::new();
        let mut step = |pos: usize| {
            batch.clear();
            batch.push(tokens[pos % tokens.len()], pos, SeqSet::one(0), true);
            ctx.decode(&batch).unwrap();
            assert!(ctx.logits(0).is_some());
        };
        // The first single token builds its graph; the others find it.
        step(16);
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        (17..200).for_each(&mut step);
        let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
        assert_eq!(allocations, 0, "{name}: allocations in 183 tokens");
    }
}
