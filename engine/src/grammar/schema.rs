//! Validates a JSON schema before compilation. Reports features that no grammar can enforce, with their
//! location.

use serde_json::Value;

use super::error::GrammarError;

/// Unsupported keywords, whose restrictions cannot be enforced.
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
    // Extensions of llguidance that change the interpretation of the schema.
    "x-guidance",
];

/// Keywords without restrictions: annotations and containers of named schemas.
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

/// Parses a schema and checks that every restriction can be enforced.
pub fn parse(text: &str) -> Result<Value, GrammarError> {
    // The JSON parser bounds the nesting depth, and thereby the recursion below.
    let schema: Value = serde_json::from_str(text).map_err(|e| {
        let (line, column) = (e.line(), e.column());
        let text = e.to_string();
        let message = text.split(" at line ").next().unwrap_or(&text).to_owned();
        GrammarError::Syntax { line, column, message }
    })?;
    check(&schema, &schema, "#")?;
    Ok(schema)
}

/// Checks a schema nested in `root`.
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
        // The keyword restricts nothing if its value is `false` or empty.
        if REFUSED.contains(&key.as_str()) && *value != Value::Bool(false) {
            return refuse(format!(
                "unsupported keyword {key:?}: its restriction cannot be enforced"
            ));
        }
        if !KNOWN.contains(&key.as_str()) && !REFUSED.contains(&key.as_str()) && !key.starts_with("x-") {
            return refuse(format!("unknown keyword {key:?}"));
        }
        if key == "$ref" && !value.as_str().is_some_and(|target| target.starts_with('#')) {
            return refuse(format!(
                "unsupported reference {value}: only references within the schema (#…) are supported"
            ));
        }
        if key == "$ref" && value.as_str().is_some_and(|target| comes_back(root, target)) {
            return refuse(format!("circular reference {value}"));
        }
        let inside = |name: &str| format!("{place}/{key}/{}", name.replace('~', "~0").replace('/', "~1"));
        match (key.as_str(), value) {
            ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(schemas)) => {
                schemas
                    .iter()
                    .try_for_each(|(name, schema)| check(root, schema, &inside(name)))?;
            }
            ("properties" | "patternProperties" | "$defs" | "definitions", other) => {
                return refuse(format!("{key:?} must be an object, found {}", kind(other)));
            }
            ("anyOf" | "oneOf" | "allOf" | "prefixItems", Value::Array(schemas)) => {
                schemas
                    .iter()
                    .enumerate()
                    .try_for_each(|(i, schema)| check(root, schema, &inside(&i.to_string())))?;
            }
            // Older drafts allow an array of schemas here.
            ("items", Value::Array(schemas)) => {
                schemas
                    .iter()
                    .enumerate()
                    .try_for_each(|(i, schema)| check(root, schema, &inside(&i.to_string())))?;
            }
            ("anyOf" | "oneOf" | "allOf" | "prefixItems", other) => {
                return refuse(format!("{key:?} must be an array, found {}", kind(other)));
            }
            ("items" | "additionalItems" | "additionalProperties", schema) => {
                check(root, schema, &format!("{place}/{key}"))?
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns true if a reference leads only to further references.
fn comes_back<'a>(root: &'a Value, mut target: &'a str) -> bool {
    /// Maximum length of a chain of references.
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
