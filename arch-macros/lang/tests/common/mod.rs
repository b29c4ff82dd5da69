//! Formats diagnostics for the tests of the language.

use arch_lang::Diagnostic;
use arch_lang::source::Origin;

/// Formats a diagnostic as `tokens: message`, with the tokens under which the message is shown. The location
/// comes first if it is in another file.
pub fn shown(d: &Diagnostic) -> String {
    let under = d.anchor.start.join(d.anchor.end).unwrap_or(d.anchor.start);
    let under = under.source_text().unwrap_or_default();
    match d.origin {
        Origin::Own => format!("{under}: {}", d.message),
        _ => format!("{under}: {}: {}", d.place, d.message),
    }
}
