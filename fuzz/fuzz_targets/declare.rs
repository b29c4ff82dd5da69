//! Fuzzes hyperparameters and tensor tables: every architecture reads the keys of the header.

#![no_main]

use std::path::Path;

use engine::gguf::Gguf;
use engine::model::declare_header;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(header) = Gguf::parse_header(bytes) else { return };
    let prefix: String = header.require("general.architecture").unwrap_or_default();
    for registered in archs::ALL {
        if let Err(e) = declare_header(&header, Path::new("fuzz.gguf"), registered.arch, &prefix) {
            assert!(!e.to_string().is_empty());
        }
    }
});
