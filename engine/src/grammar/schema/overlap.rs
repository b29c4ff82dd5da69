//! Checks that the alternatives of `oneOf` exclude each other, so that any valid alternative is the only one.

use serde_json::Value;

use super::references::References;
use super::{refused, types, values};
use crate::grammar::GrammarError;

/// Maximum depth of references and subschemas that the check follows.
const MAX_DEPTH: usize = 8;
/// Maximum number of alternatives whose pairs are checked.
const MAX_OPTIONS: usize = 128;

/// Checks that no value is valid under two alternatives.
pub fn check_disjoint(references: &References, options: &[Value], place: &str) -> Result<(), GrammarError> {
    if options.len() > MAX_OPTIONS {
        let message = format!("\"oneOf\" has {} alternatives, maximum {MAX_OPTIONS}", options.len());
        return Err(refused(place, message));
    }
    for (j, b) in options.iter().enumerate() {
        for (i, a) in options[..j].iter().enumerate() {
            if !excludes(references, a, b, 0) {
                let message = format!(
                    "unsupported \"oneOf\": alternatives {i} and {j} can accept the same value, and matching only one cannot be enforced; \
                     use \"anyOf\", or a property with different constants"
                );
                return Err(refused(place, message));
            }
        }
    }
    Ok(())
}

/// Returns true if no value is valid under both schemas.
fn excludes(references: &References, a: &Value, b: &Value, depth: usize) -> bool {
    if depth > MAX_DEPTH || !references.spend() {
        return false;
    }
    let (parts_a, parts_b) = (parts(references, a), parts(references, b));
    let pairs = parts_a.iter().flat_map(|a| parts_b.iter().map(move |b| (*a, *b)));
    for (a, b) in pairs {
        if *a == Value::Bool(false) || *b == Value::Bool(false) || values_exclude(a, b) {
            return true;
        }
        for key in ["anyOf", "oneOf"] {
            let all_exclude = |schema: &Value, other: &Value| match schema.get(key).and_then(Value::as_array) {
                Some(list) if !list.is_empty() => list.iter().all(|one| excludes(references, one, other, depth + 1)),
                _ => false,
            };
            if all_exclude(a, b) || all_exclude(b, a) {
                return true;
            }
        }
    }
    objects_exclude(references, &parts_a, &parts_b, depth)
}

/// Returns a schema, the targets of its references, and the members of `allOf`. All of them apply to a value.
fn parts<'a>(references: &References<'a>, schema: &'a Value) -> Vec<&'a Value> {
    /// Maximum number of parts.
    const MAX: usize = 32;
    let mut all = vec![schema];
    let mut i = 0;
    while i < all.len() && all.len() < MAX {
        let schema = all[i];
        if schema.get("$ref").is_some()
            && let Ok(pointer) = references.resolve(&schema["$ref"], "#")
        {
            all.extend(references.at(&pointer));
        }
        all.extend(schema.get("allOf").and_then(Value::as_array).into_iter().flatten());
        i += 1;
    }
    all
}

/// Compares listed values, types, and bounds.
fn values_exclude(a: &Value, b: &Value) -> bool {
    match (values(a), values(b)) {
        (Some(a), Some(b)) => return a.iter().all(|x| b.iter().all(|y| !is_equal(x, y))),
        (Some(a), None) => return a.iter().all(|value| !has_type(value, b)),
        (None, Some(b)) => return b.iter().all(|value| !has_type(value, a)),
        (None, None) => {}
    }
    let (Some(types_a), Some(types_b)) = (types(a), types(b)) else {
        return false;
    };
    let is_number = |name: &str| name == "number" || name == "integer";
    let is_same = |a: &str, b: &str| a == b || is_number(a) && is_number(b);
    if types_a.iter().all(|a| types_b.iter().all(|b| !is_same(a, b))) {
        return true;
    }
    let only = |of: fn(&str) -> bool| types_a.iter().chain(&types_b).all(|name| of(name));
    let number = |schema: &Value, key: &str| schema.get(key).and_then(Value::as_f64);
    let is_above = |low: &Value, high: &Value, least: &str, most: &str| {
        number(low, least)
            .zip(number(high, most))
            .is_some_and(|(least, most)| least > most)
    };
    let bounds = if only(|name| name == "number" || name == "integer") {
        ("minimum", "maximum")
    } else if only(|name| name == "string") {
        ("minLength", "maxLength")
    } else if only(|name| name == "array") {
        ("minItems", "maxItems")
    } else {
        return false;
    };
    is_above(a, b, bounds.0, bounds.1) || is_above(b, a, bounds.0, bounds.1)
}

fn has_type(value: &Value, schema: &Value) -> bool {
    let Some(names) = types(schema) else { return true };
    names.iter().any(|name| match *name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => value.is_number(),
    })
}

fn is_equal(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

/// Returns true if no object satisfies both schemas: a required property has incompatible values, or is forbidden by
/// the other schema.
fn objects_exclude(references: &References, a: &[&Value], b: &[&Value], depth: usize) -> bool {
    let is_object = |parts: &[&Value]| {
        parts
            .iter()
            .any(|part| types(part).is_some_and(|names| names == ["object"]))
    };
    if !is_object(a) || !is_object(b) {
        return false;
    }
    let required = a.iter().chain(b).filter_map(|part| part.get("required")?.as_array());
    required.flatten().filter_map(Value::as_str).any(|name| {
        let (of_a, of_b) = (properties(a, name), properties(b, name));
        let mut pairs = of_a.iter().flat_map(|x| of_b.iter().map(move |y| (*x, *y)));
        pairs.any(|(x, y)| excludes(references, x, y, depth + 1)) || forbids(a, name) || forbids(b, name)
    })
}

/// Returns the schemas of a property.
fn properties<'v>(parts: &[&'v Value], name: &str) -> Vec<&'v Value> {
    let found = parts.iter().filter_map(|part| part.get("properties")?.get(name));
    found.collect()
}

/// Returns true if a part forbids a property.
fn forbids(parts: &[&Value], name: &str) -> bool {
    parts.iter().any(|part| {
        let property = part.get("properties").and_then(|all| all.get(name));
        property == Some(&Value::Bool(false))
            || property.is_none()
                && part.get("additionalProperties") == Some(&Value::Bool(false))
                && part.get("patternProperties").is_none()
    })
}
