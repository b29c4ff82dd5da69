//! Output of `-V` and `--version`: commit, architectures, and devices.

use engine::backend;

/// `0.1.0 (commit 0123456789)`.
pub fn short() -> String {
    format!("{} (commit {})", env!("CARGO_PKG_VERSION"), env!("LLAMA_COMMIT"))
}

/// Returns the version, number of architectures, devices, and reasons why devices are unusable.
pub fn long() -> String {
    let mut text = short();
    text += &format!("\n{} architectures", archs::ALL.len());
    for device in backend::devices() {
        text += &format!("\ndevice {}: {}", device.name(), device.description());
    }
    for registry in backend::registries() {
        for problem in registry.problems() {
            text += &format!("\nunavailable: {}: {problem}", registry.name());
        }
    }
    text
}
