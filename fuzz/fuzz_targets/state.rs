//! Saved states: any bytes are refused with a sentence, or give a context that decodes on and saves a state that can be restored.
//!
//! Under `cfg(fuzzing)` the checksum counts as right, and the length is corrected here: what is behind them is to be found.

#![no_main]

use std::cell::RefCell;

use engine::context::{Batch, Context};
use libfuzzer_sys::fuzz_target;

/// Where a state says how long it is.
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
        // Something to move out of the way, and something that has to stay.
        let mut batch = Batch::new();
        batch.push_prompt(&[1, 2, 3], 0, 0);
        batch.push_prompt(&[4, 5], 0, 1);
        ctx.decode(&batch).expect("there is room");
        match ctx.load_state(&state) {
            Ok(()) => goes_on(ctx),
            Err(e) => {
                assert!(!e.to_string().is_empty());
                assert_eq!(
                    (ctx.n_past(0), ctx.n_past(1)),
                    (3, 2),
                    "a refused state changes nothing"
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
    ctx.save_state(&mut again).expect("memory can be written to");
    ctx.load_state(&again).expect("what was saved can be restored");
    for seq in 0..3 {
        let mut batch = Batch::new();
        batch.push_prompt(&[7], ctx.n_past(seq), seq);
        // There may be no room.
        let _ = ctx.decode(&batch);
    }
}
