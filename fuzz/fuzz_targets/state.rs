//! Fuzzes saved states: restoring any input must return an error, or a context that can decode and save a
//! state that can be restored.
//!
//! With `cfg(fuzzing)`, every checksum is accepted, and this target corrects the length, so that the fuzzer
//! reaches the code after these checks.

#![no_main]

use std::cell::RefCell;

use engine::context::{Batch, Context};
use libfuzzer_sys::fuzz_target;

/// Offset of the state's length field.
const LENGTH: std::ops::Range<usize> = 16..24;

thread_local! {
    static CONTEXT: RefCell<Context> = RefCell::new(fuzz_targets::state_context());
}

fuzz_target!(|bytes: &[u8]| {
    let mut state = bytes.to_vec();
    if let Some(length) = state.get_mut(LENGTH) {
        length.copy_from_slice(&(bytes.len() as u64).to_le_bytes());
    }
    CONTEXT.with_borrow_mut(|ctx| {
        ctx.clear();
        // Content to be replaced, and content that must be preserved.
        let mut batch = Batch::new();
        batch.push_prompt(&[1, 2, 3], 0, 0);
        batch.push_prompt(&[4, 5], 0, 1);
        ctx.decode(&batch).expect("batch should have space for the tokens");
        match ctx.load_state(&state) {
            Ok(()) => goes_on(ctx),
            Err(e) => {
                assert!(!e.to_string().is_empty());
                assert_eq!(
                    (ctx.n_past(0), ctx.n_past(1)),
                    (3, 2),
                    "a rejected state must not change the context"
                );
            }
        }
        match ctx.load_seq(2, &state) {
            Ok(()) => goes_on(ctx),
            Err(e) => assert!(!e.to_string().is_empty()),
        }
    });
});

fn goes_on(ctx: &mut Context) {
    let mut again = Vec::new();
    ctx.save_state(&mut again).expect("writing to memory should succeed");
    ctx.load_state(&again).expect("a saved state should be restorable");
    for seq in 0..3 {
        let mut batch = Batch::new();
        batch.push_prompt(&[7], ctx.n_past(seq), seq);
        // Decoding may fail if the cache is full.
        let _ = ctx.decode(&batch);
    }
}
