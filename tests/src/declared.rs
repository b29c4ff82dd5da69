//! Architectures of the built-in declarations as read at run time.

use std::sync::LazyLock;

use arch_runtime::DeclarationError;
use arch_runtime::library::BuiltIn;
use engine::model::Registered;

/// Every built-in declaration as read at run time: file, and architecture or error.
pub static DECLARED: LazyLock<Vec<(&'static str, Result<Registered, DeclarationError>)>> = LazyLock::new(|| {
    let files = BuiltIn.all().filter(|(file, _)| !file.contains('/'));
    let declare = |(file, text)| (file, arch_runtime::declare(file, text, &BuiltIn));
    files.map(declare).collect()
});

/// Returns the architectures that can be read at run time.
pub fn interpreted() -> Vec<Registered> {
    let read = DECLARED.iter().filter_map(|(_, result)| result.as_ref().ok());
    read.copied().collect()
}
