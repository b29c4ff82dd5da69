//! Fuzzes adapter files: a header with zeroed tensors is loaded as a LoRA adapter and as a control vector,
//! and applied if loading succeeds.

#![no_main]

use std::cell::RefCell;
use std::sync::Arc;

use engine::adapter::{ControlVector, LoraAdapter};
use engine::context::{Batch, Context};
use engine::gguf::{Gguf, GgufFile};
use libfuzzer_sys::fuzz_target;

/// Size limit in bytes. Larger adapters only slow down fuzzing.
const MAX_BYTES: usize = 1 << 20;

thread_local! {
    static CONTEXTS: RefCell<Vec<Context>> = RefCell::new(
        fuzz_targets::adapted_models().iter().map(fuzz_targets::adapted_context).collect()
    );
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(header) = Gguf::parse_header(bytes) else { return };
    let needed = header.required_len().map_or(header.data_offset(), |(_, len)| len);
    if needed > MAX_BYTES {
        return;
    }
    let mut whole = bytes.to_vec();
    whole.resize(needed.max(bytes.len()), 0);
    let file = GgufFile::from_bytes("fuzz.gguf", &whole).expect("file length should match the header");
    CONTEXTS.with_borrow_mut(|contexts| contexts.iter_mut().for_each(|ctx| adapt(ctx, &file)));
});

fn adapt(ctx: &mut Context, file: &GgufFile) {
    let model = ctx.model().clone();
    match LoraAdapter::from_file(file, &model) {
        Ok(lora) => {
            let lora = Arc::new(lora);
            ctx.set_adapters(&[(lora.clone(), 1.0), (lora, -0.5)])
                .expect("adapter should apply to the model it was loaded for");
            decode(ctx);
            ctx.set_adapters(&[]).expect("model should decode without the adapter");
        }
        Err(e) => assert!(!e.to_string().is_empty()),
    }
    match ControlVector::from_file(file, &model) {
        Ok(vector) => {
            ctx.set_control_vectors(&[(&vector, 1.0)], 0..=usize::MAX)
                .expect("control vector should apply to the model it was loaded for");
            decode(ctx);
            ctx.set_control_vectors(&[], 0..=0).expect("model should decode without the control vector");
        }
        Err(e) => assert!(!e.to_string().is_empty()),
    }
}

fn decode(ctx: &mut Context) {
    ctx.clear();
    let mut batch = Batch::new();
    batch.push_prompt(&[1, 2], 0, 0);
    ctx.decode(&batch).expect("batch should have space for the token");
}
