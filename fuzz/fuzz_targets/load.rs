//! Fuzzes model loading: a header with zeroed weights, followed by decoding a few tokens if loading succeeds.

#![no_main]

use std::sync::Arc;

use engine::context::{Batch, Context, ContextParams};
use engine::gguf::{Gguf, GgufFile};
use engine::model::{LoadParams, Model};
use libfuzzer_sys::fuzz_target;

/// Size limit in bytes. Larger models only slow down fuzzing.
const MAX_BYTES: usize = 4 << 20;

fuzz_target!(|bytes: &[u8]| {
    let Ok(header) = Gguf::parse_header(bytes) else { return };
    let needed = header.required_len().map_or(header.data_offset(), |(_, len)| len);
    if needed > MAX_BYTES {
        return;
    }
    let mut whole = bytes.to_vec();
    whole.resize(needed.max(bytes.len()), 0);
    let file = GgufFile::from_bytes("fuzz.gguf", &whole).expect("file length should match the header");
    let model = match Model::from_file(file, archs::ALL, &LoadParams::default()) {
        Ok(model) => Arc::new(model),
        Err(e) => return assert!(!e.to_string().is_empty()),
    };
    let params = ContextParams {
        n_ctx: 16,
        n_batch: 8,
        n_ubatch: 4,
        n_threads: 1,
        n_threads_batch: 1,
        ..ContextParams::default()
    };
    let Ok(mut context) = Context::new(model, &params) else {
        return;
    };
    let mut batch = Batch::new();
    batch.push_prompt(&[0, 0, 0, 0, 0], 0, 0);
    let _ = context.decode(&batch);
});
