//! Finds the part of a schema that the grammar compiler rejects, because its errors do not name the part.

use std::collections::HashSet;

use serde_json::Value;

use super::references::References;
use super::{enforceable_at, inside};
use crate::grammar::GrammarError;

/// Maximum number of parts that are compiled.
const MAX_PARTS: usize = 64;

/// Returns the error of a schema with the location of the innermost part that `refused` returns an error for.
/// `error` is the message for the whole schema.
pub fn located(schema: &Value, error: String, refused: &dyn Fn(Value) -> Option<String>) -> GrammarError {
    let references = References::new(schema);
    let (mut place, mut message) = (String::new(), error);
    let (mut seen, mut n_left) = (HashSet::new(), MAX_PARTS);
    while let Some(inner) = parts(&references, &place).into_iter().find_map(|part| {
        if n_left == 0 || !seen.insert(part.clone()) {
            return None;
        }
        n_left -= 1;
        let error = match enforceable_at(schema, &part) {
            Ok(enforceable) => refused(enforceable)?,
            // An alternative without an equivalent is omitted.
            Err(_) => return None,
        };
        Some((part, error))
    }) {
        (place, message) = inner;
    }
    GrammarError::Schema {
        place: format!("#{place}"),
        message,
    }
}

/// Returns the pointers of the subschemas directly in the schema at `place`, and of its reference.
fn parts(references: &References<'_>, place: &str) -> Vec<String> {
    let Some(fields) = references.at(place).and_then(Value::as_object) else {
        return Vec::new();
    };
    let mut all = Vec::new();
    for (key, value) in fields {
        match (key.as_str(), value) {
            ("properties" | "patternProperties", Value::Object(schemas)) => {
                all.extend(schemas.keys().map(|name| inside(place, key, name)));
            }
            ("anyOf" | "oneOf" | "allOf" | "prefixItems" | "items", Value::Array(schemas)) => {
                all.extend((0..schemas.len()).map(|i| format!("{place}/{key}/{i}")));
            }
            ("items" | "additionalProperties" | "additionalItems", Value::Object(_)) => {
                all.push(format!("{place}/{key}"));
            }
            ("$ref", target) => all.extend(references.resolve(target, place)),
            _ => {}
        }
    }
    all
}
