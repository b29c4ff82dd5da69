//! Architectures of the built-in declarations as read at run time.

use std::sync::LazyLock;

use arch_runtime::DeclarationError;
use arch_runtime::library::{BuiltIn, BuiltInEncoders};
use engine::model::Registered;

/// File of a declaration, and its architecture as read at run time.
pub type Declared = (&'static str, Result<Registered, DeclarationError>);

/// Every built-in architecture.
pub static DECLARED: LazyLock<Vec<Declared>> = LazyLock::new(|| {
    let files = BuiltIn.all().filter(|(file, _)| !file.contains('/'));
    let declare = |(file, text)| (file, arch_runtime::declare(file, text, &BuiltIn));
    files.map(declare).collect()
});

/// Every built-in encoder.
pub static DECLARED_ENCODERS: LazyLock<Vec<Declared>> = LazyLock::new(|| {
    let declare = |(file, text)| (file, arch_runtime::declare(file, text, &BuiltInEncoders));
    BuiltInEncoders.encoders().map(declare).collect()
});

/// Returns the architectures as read at run time.
pub fn interpreted() -> Vec<Registered> {
    registered(&DECLARED)
}

/// Returns the encoders as read at run time.
pub fn interpreted_encoders() -> Vec<Registered> {
    registered(&DECLARED_ENCODERS)
}

fn registered(declared: &[Declared]) -> Vec<Registered> {
    let read = declared.iter().filter_map(|(_, result)| result.as_ref().ok());
    read.copied().collect()
}
