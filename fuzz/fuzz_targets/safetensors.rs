//! Fuzzes the reader of safetensors headers: any input must yield tensors within the file or an error.

#![no_main]

use engine::checkpoint::parse_safetensors;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| match parse_safetensors(bytes) {
    Ok(tensors) => {
        for t in &tensors {
            let elements: usize = t.shape.iter().product();
            assert_eq!(bytes[t.data.clone()].len(), elements * t.ty.bytes());
        }
    }
    Err(e) => assert!(!e.is_empty()),
});
