//! Fuzzes declarations that are read at run time. The text up to the byte 0 is compiled, and the rest is a header that
//! the architecture loads.

#![no_main]

use std::path::Path;

use engine::gguf::Gguf;
use engine::model::{LoadParams, declare_header, plan};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    let Ok(text) = std::str::from_utf8(&bytes[..end]) else { return };
    let registered = match arch_runtime::embedded("fuzz.rs", text) {
        Ok(registered) => registered,
        Err(e) => return assert!(!e.to_string().is_empty()),
    };
    let Ok(header) = Gguf::parse_header(&bytes[(end + 1).min(bytes.len())..]) else { return };
    let path = Path::new("fuzz.gguf");
    let prefix = registered.arch.key_prefix(registered.arch.file_arch());
    if let Err(e) = declare_header(&header, path, registered.arch, prefix) {
        return assert!(!e.to_string().is_empty());
    }
    if let Err(e) = plan(&header, path, &[registered], &LoadParams::default()) {
        assert!(!e.to_string().is_empty());
    }
});
