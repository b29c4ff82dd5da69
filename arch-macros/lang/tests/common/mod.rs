//! How the tests of the language show diagnostics.

use arch_lang::Diagnostic;
use arch_lang::source::Origin;

/// `text: message`, where the message is shown under the text; if what it is about stands in another file, with its place in front.
pub fn shown(d: &Diagnostic) -> String {
    let under = d.anchor.start.join(d.anchor.end).unwrap_or(d.anchor.start);
    let under = under.source_text().unwrap_or_default();
    match d.origin {
        Origin::Own => format!("{under}: {}", d.message),
        _ => format!("{under}: {}: {}", d.place, d.message),
    }
}
