//! What `-V` and `--version` say: which commit this is, and what it can do here.

use engine::backend;

/// `0.1.0 (commit 0123456789)`.
pub fn short() -> String {
    format!("{} (commit {})", env!("CARGO_PKG_VERSION"), env!("LLAMA_COMMIT"))
}

/// The same, and the devices, what is not usable, and how many architectures there are.
pub fn long() -> String {
    let mut text = short();
    text += &format!("\n{} architectures", archs::ALL.len());
    for device in backend::devices() {
        text += &format!("\ndevice {}: {}", device.name(), device.description());
    }
    for registry in backend::registries() {
        for flaw in registry.flaws() {
            text += &format!("\nnot usable: {}: {flaw}", registry.name());
        }
    }
    text
}
