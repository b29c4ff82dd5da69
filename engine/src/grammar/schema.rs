//! What a JSON schema must not say, since it could not be kept: found before anything is made of it, with its place.

use serde_json::Value;

use super::error::GrammarError;

/// Keywords that restrict documents in ways that no grammar here does.
const REFUSED: &[&str] = &[
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "propertyNames",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef",
    // Of llguidance's own, which would change how the rest is read.
    "x-guidance",
];

/// Keywords that only tell people, or hold schemas by name.
const KNOWN: &[&str] = &[
    "anyOf",
    "oneOf",
    "allOf",
    "$ref",
    "const",
    "enum",
    "type",
    "items",
    "additionalItems",
    "prefixItems",
    "minItems",
    "maxItems",
    "properties",
    "additionalProperties",
    "patternProperties",
    "required",
    "minProperties",
    "maxProperties",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "$anchor",
    "$defs",
    "definitions",
    "$schema",
    "$id",
    "id",
    "$comment",
    "title",
    "description",
    "default",
    "readOnly",
    "writeOnly",
    "examples",
    "contentMediaType",
    "contentEncoding",
    "deprecated",
    "nullable",
];

/// The schema in a text, if all of it can be kept.
pub fn parse(text: &str) -> Result<Value, GrammarError> {
    // The parser bounds the depth, and with it that of what follows.
    let schema: Value = serde_json::from_str(text).map_err(|e| {
        let (line, column) = (e.line(), e.column());
        let text = e.to_string();
        let message = text.split(" at line ").next().unwrap_or(&text).to_owned();
        GrammarError::Syntax { line, column, message }
    })?;
    check(&schema, &schema, "#")?;
    Ok(schema)
}

/// `root`: the schema that this one is in.
fn check(root: &Value, schema: &Value, place: &str) -> Result<(), GrammarError> {
    let refuse = |message: String| {
        Err(GrammarError::Schema {
            place: place.to_owned(),
            message,
        })
    };
    let fields = match schema {
        Value::Bool(_) => return Ok(()),
        Value::Object(fields) => fields,
        other => return refuse(format!("expected a schema, found {}", kind(other))),
    };
    for (key, value) in fields {
        // One that is false or empty asks for nothing.
        if REFUSED.contains(&key.as_str()) && *value != Value::Bool(false) {
            return refuse(format!(
                "the keyword {key:?} is not supported: what it asks for would not be kept"
            ));
        }
        if !KNOWN.contains(&key.as_str()) && !REFUSED.contains(&key.as_str()) && !key.starts_with("x-") {
            return refuse(format!("there is no keyword {key:?} that is known here"));
        }
        if key == "$ref" && !value.as_str().is_some_and(|target| target.starts_with('#')) {
            return refuse(format!(
                "the reference {value} leads out of the schema: only those that begin with # are followed"
            ));
        }
        if key == "$ref" && value.as_str().is_some_and(|target| comes_back(root, target)) {
            return refuse(format!(
                "the reference {value} leads back to itself: nothing says what is meant"
            ));
        }
        let inside = |name: &str| format!("{place}/{key}/{}", name.replace('~', "~0").replace('/', "~1"));
        match (key.as_str(), value) {
            ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(schemas)) => {
                schemas
                    .iter()
                    .try_for_each(|(name, schema)| check(root, schema, &inside(name)))?;
            }
            ("properties" | "patternProperties" | "$defs" | "definitions", other) => {
                return refuse(format!("{key:?} is {}, expected an object", kind(other)));
            }
            ("anyOf" | "oneOf" | "allOf" | "prefixItems", Value::Array(schemas)) => {
                schemas
                    .iter()
                    .enumerate()
                    .try_for_each(|(i, schema)| check(root, schema, &inside(&i.to_string())))?;
            }
            // As older drafts have it.
            ("items", Value::Array(schemas)) => {
                schemas
                    .iter()
                    .enumerate()
                    .try_for_each(|(i, schema)| check(root, schema, &inside(&i.to_string())))?;
            }
            ("anyOf" | "oneOf" | "allOf" | "prefixItems", other) => {
                return refuse(format!("{key:?} is {}, expected an array", kind(other)));
            }
            ("items" | "additionalItems" | "additionalProperties", schema) => {
                check(root, schema, &format!("{place}/{key}"))?
            }
            _ => {}
        }
    }
    Ok(())
}

/// True if a reference leads to nothing but references.
fn comes_back<'a>(root: &'a Value, mut target: &'a str) -> bool {
    /// More than anybody has one after the other.
    const MAX: usize = 64;
    for _ in 0..MAX {
        let found = target.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
        match found.and_then(|found| found.get("$ref")).and_then(Value::as_str) {
            Some(next) => target = next,
            None => return false,
        }
    }
    true
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
