//! Fuzzes the GGUF parser: any input must yield a header or an error.

#![no_main]

use engine::gguf::Gguf;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| match Gguf::parse_header(bytes) {
    Ok(header) => {
        for (key, value) in header.metadata.iter() {
            assert!(!key.is_empty() && !value.describe().is_empty());
        }
        for t in header.tensors() {
            assert!(t.n_elements() > 0 && t.offset.checked_add(t.bytes).is_some());
        }
    }
    Err(e) => assert!(!e.to_string().is_empty()),
});
