//! Rewrites JSON schemas into the subset that grammars can enforce.
//!
//! - Keywords without restrictions (annotations, unknown keywords, and formats) are removed.
//! - References point to flat names in `$defs` at the root, so a schema can be embedded in another one together
//!   with its `$defs`.
//! - Restrictions that the grammar compiler lacks are rewritten where an equivalent exists ([`pattern`], [`overlap`],
//!   [`rewrite`]). All other restrictions are rejected with their location, except in alternatives: an alternative
//!   that cannot be enforced is omitted if another one remains.
//!
//! Every document that the result accepts is valid under the original schema.

mod blame;
mod complement;
mod overlap;
mod pattern;
mod references;
mod rewrite;

use std::collections::HashMap;

use indexmap::IndexSet;
use serde_json::{Map, Value};

use super::error::GrammarError;
pub use blame::located;
use references::References;

/// Types of JSON values.
const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];
/// Formats of strings that are enforced.
const FORMATS: [&str; 10] = [
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uuid",
    "uri",
];
/// Maximum number of definitions that are omitted because they cannot be enforced.
const MAX_BROKEN: usize = 32;

/// Parses a schema and rewrites it into the enforceable subset.
pub fn parse(text: &str) -> Result<Value, GrammarError> {
    enforceable(&value(text)?)
}

/// Parses a schema. The JSON parser limits the nesting depth, which also limits the recursion in this module.
pub fn value(text: &str) -> Result<Value, GrammarError> {
    serde_json::from_str(text).map_err(|e| {
        let (line, column) = (e.line(), e.column());
        let text = e.to_string();
        let message = text.split(" at line ").next().unwrap_or(&text).to_owned();
        GrammarError::Syntax { line, column, message }
    })
}

/// Rewrites a schema into the enforceable subset, with all references to `$defs` at the root.
///
/// # Errors
/// Returns [`GrammarError::Schema`] with the location of a restriction that cannot be enforced.
pub fn enforceable(schema: &Value) -> Result<Value, GrammarError> {
    enforceable_at(schema, "")
}

/// Rewrites the part of a schema at a JSON pointer, with all references to `$defs` at the root of the result.
fn enforceable_at(schema: &Value, pointer: &str) -> Result<Value, GrammarError> {
    let references = References::new(schema);
    let part = references.at(pointer).unwrap_or(schema);
    let mut broken = HashMap::new();
    loop {
        let mut bundler = Bundler {
            references: &references,
            broken: &broken,
            names: IndexSet::new(),
        };
        let body = bundler.schema(part, &format!("#{pointer}"))?;
        let (pointer, error) = match bundler.definitions() {
            Ok(defs) => return Ok(with_definitions(body, defs)),
            Err(failed) => failed,
        };
        if broken.len() >= MAX_BROKEN {
            return Err(error);
        }
        broken.insert(pointer, error);
    }
}

fn with_definitions(body: Value, defs: Map<String, Value>) -> Value {
    match body {
        Value::Object(mut fields) if !defs.is_empty() => {
            fields.insert("$defs".to_owned(), defs.into());
            Value::Object(fields)
        }
        body => body,
    }
}

/// Rewrites the parts of one schema and collects the targets of its references.
struct Bundler<'a> {
    references: &'a References<'a>,
    /// Targets of references that cannot be enforced.
    broken: &'a HashMap<String, GrammarError>,
    /// Pointers to the targets of references; the index gives the name.
    names: IndexSet<String>,
}

/// A rewritten schema object.
#[derive(Default)]
struct Rewritten {
    fields: Map<String, Value>,
    /// Further schemas that apply to the same value.
    also: Vec<Value>,
}

impl Rewritten {
    fn insert(&mut self, key: &str, value: Value) {
        self.fields.insert(key.to_owned(), value);
    }

    fn into_schema(mut self) -> Value {
        if !self.also.is_empty() {
            match self.fields.get_mut("allOf") {
                Some(Value::Array(all)) => all.append(&mut self.also),
                _ => _ = self.fields.insert("allOf".to_owned(), self.also.into()),
            }
        }
        Value::Object(self.fields)
    }
}

/// Returns the error for a part of a schema.
fn refused(place: &str, message: impl Into<String>) -> GrammarError {
    GrammarError::Schema {
        place: place.to_owned(),
        message: message.into(),
    }
}

/// Returns the error for a keyword that cannot be enforced.
fn unsupported(place: &str, key: &str) -> GrammarError {
    refused(
        place,
        format!("unsupported keyword {key:?}: its restriction cannot be enforced"),
    )
}

fn inside(place: &str, key: &str, name: &str) -> String {
    format!("{place}/{key}/{}", name.replace('~', "~0").replace('/', "~1"))
}

impl Bundler<'_> {
    /// Rewrites the targets of all references. Returns the pointer of a target that cannot be enforced.
    fn definitions(&mut self) -> Result<Map<String, Value>, (String, GrammarError)> {
        let mut defs = Map::new();
        let mut i = 0;
        while let Some(pointer) = self.names.get_index(i).cloned() {
            let target = self.references.at(&pointer).cloned().unwrap_or(Value::Bool(false));
            let schema = self.schema(&target, &format!("#{pointer}"));
            match schema {
                Ok(schema) => _ = defs.insert(format!("r{i}"), schema),
                Err(error) => return Err((pointer, error)),
            }
            i += 1;
        }
        Ok(defs)
    }

    /// Rewrites a schema at `place`.
    fn schema(&mut self, schema: &Value, place: &str) -> Result<Value, GrammarError> {
        let fields = match schema {
            Value::Bool(_) => return Ok(schema.clone()),
            Value::Object(fields) => fields,
            other => return Err(refused(place, format!("expected a schema, found {}", kind(other)))),
        };
        check_bounds(fields, place)?;
        let mut out = Rewritten::default();
        for (key, value) in fields {
            self.keyword(fields, (key, value), place, &mut out)?;
        }
        self.restrictions(fields, place, &mut out)?;
        Ok(out.into_schema())
    }

    /// Rewrites a keyword that the grammar compiler supports.
    fn keyword(
        &mut self,
        fields: &Map<String, Value>,
        (key, value): (&str, &Value),
        place: &str,
        out: &mut Rewritten,
    ) -> Result<(), GrammarError> {
        let here = |key: &str| format!("{place}/{key}");
        match key {
            "$ref" | "$dynamicRef" | "$recursiveRef" => {
                let target = self.reference(value, place)?;
                // Both keywords in one schema are rare.
                if out.fields.contains_key("$ref") {
                    return Err(unsupported(place, key));
                }
                out.insert("$ref", target);
            }
            "anyOf" => {
                let options = self.alternatives(list_of(key, value, place)?, &here(key))?;
                out.insert(key, options);
            }
            "oneOf" => {
                let options = list_of(key, value, place)?;
                overlap::check_disjoint(self.references, options, place)?;
                let options = self.alternatives(options, &here(key))?;
                if fields.contains_key("anyOf") {
                    out.also.push(Map::from_iter([("anyOf".to_owned(), options)]).into());
                } else {
                    out.insert("anyOf", options);
                }
            }
            "allOf" | "prefixItems" => {
                let schemas = self.schemas(list_of(key, value, place)?, &here(key))?;
                out.insert(key, schemas);
            }
            // Older drafts allow an array of schemas here.
            "items" => match value {
                Value::Array(schemas) => {
                    let schemas = self.schemas(schemas, &here(key))?;
                    out.insert("prefixItems", schemas);
                }
                schema => {
                    let schema = self.schema(schema, &here(key))?;
                    out.insert(key, schema);
                }
            },
            "additionalItems" if fields.get("items").is_some_and(Value::is_array) => {
                let schema = self.schema(value, &here(key))?;
                out.insert("items", schema);
            }
            "additionalProperties" => {
                let schema = self.schema(value, &here(key))?;
                out.insert(key, schema);
            }
            "properties" | "patternProperties" => {
                let schemas = self.properties((key, value), place)?;
                out.insert(key, schemas);
            }
            _ => assertion((key, value), place, out)?,
        }
        Ok(())
    }

    fn properties(&mut self, (key, value): (&str, &Value), place: &str) -> Result<Value, GrammarError> {
        let Value::Object(schemas) = value else {
            return Err(refused(
                place,
                format!("{key:?} must be an object, found {}", kind(value)),
            ));
        };
        let mut all = Map::new();
        for (name, schema) in schemas {
            let place = inside(place, key, name);
            let schema = self.schema(schema, &place)?;
            all.insert(property_name(key, name, &place)?, schema);
        }
        Ok(all.into())
    }

    fn schemas(&mut self, schemas: &[Value], place: &str) -> Result<Value, GrammarError> {
        let mut all = Vec::with_capacity(schemas.len());
        for (i, schema) in schemas.iter().enumerate() {
            all.push(self.schema(schema, &format!("{place}/{i}"))?);
        }
        Ok(all.into())
    }

    /// Rewrites alternatives. Omits alternatives that cannot be enforced, unless none would remain.
    fn alternatives(&mut self, schemas: &[Value], place: &str) -> Result<Value, GrammarError> {
        let (mut all, mut error) = (Vec::with_capacity(schemas.len()), None);
        for (i, schema) in schemas.iter().enumerate() {
            let n_names = self.names.len();
            match self.schema(schema, &format!("{place}/{i}")) {
                Ok(schema) => all.push(schema),
                Err(e) => {
                    self.names.truncate(n_names);
                    error.get_or_insert(e);
                }
            }
        }
        match error {
            Some(error) if all.is_empty() => Err(error),
            None if all.is_empty() => Err(refused(place, "the list of alternatives is empty")),
            _ => Ok(all.into()),
        }
    }

    /// Returns the new form of a reference.
    fn reference(&mut self, target: &Value, place: &str) -> Result<Value, GrammarError> {
        let pointer = self.references.resolve(target, place)?;
        if let Some(error) = self.broken.get(&pointer) {
            return Err(error.clone());
        }
        let (i, _) = self.names.insert_full(pointer);
        Ok(format!("#/$defs/r{i}").into())
    }
}

/// Copies a keyword that restricts a value without subschemas.
fn assertion((key, value): (&str, &Value), place: &str, out: &mut Rewritten) -> Result<(), GrammarError> {
    match key {
        "type" => {
            let known = |name: &Value| name.as_str().is_some_and(|name| TYPES.contains(&name));
            let is_known = match value {
                Value::Array(names) => !names.is_empty() && names.iter().all(known),
                name => known(name),
            };
            if !is_known {
                return Err(refused(
                    place,
                    format!("unknown type {value}: expected {}", TYPES.join(", ")),
                ));
            }
            out.insert(key, value.clone());
        }
        "enum" => {
            if list_of(key, value, place)?.is_empty() {
                return Err(refused(place, "\"enum\" is empty, so no value is valid"));
            }
            out.insert(key, value.clone());
        }
        // An older draft has a boolean in each property.
        "required" if value.is_boolean() => {}
        "pattern" => {
            let Some(text) = value.as_str() else {
                return Err(refused(
                    place,
                    format!("\"pattern\" must be a string, found {}", kind(value)),
                ));
            };
            let place = format!("{place}/pattern");
            let patterns = pattern::enforceable(text).map_err(|message| refused(&place, message))?;
            for pattern in patterns {
                out.also.push(Map::from_iter([(key.to_owned(), pattern.into())]).into());
            }
        }
        "format" if value.as_str().is_some_and(|name| FORMATS.contains(&name)) => out.insert(key, value.clone()),
        "const" | "required" | "minItems" | "maxItems" | "minProperties" | "maxProperties" | "minLength"
        | "maxLength" | "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf" => {
            out.insert(key, value.clone());
        }
        // All other keywords are annotations, or were handled together with related keywords.
        _ => {}
    }
    Ok(())
}

/// Returns the name of a property, or the rewritten pattern of a pattern property.
fn property_name(key: &str, name: &str, place: &str) -> Result<String, GrammarError> {
    if key == "properties" {
        return Ok(name.to_owned());
    }
    let patterns = pattern::enforceable(name).map_err(|message| refused(place, message))?;
    match <[String; 1]>::try_from(patterns) {
        Ok([pattern]) => Ok(pattern),
        Err(_) => Err(refused(
            place,
            "unsupported pattern: lookaheads in the names of properties",
        )),
    }
}

fn list_of<'v>(key: &str, value: &'v Value, place: &str) -> Result<&'v [Value], GrammarError> {
    match value {
        Value::Array(list) => Ok(list),
        other => Err(refused(
            place,
            format!("{key:?} must be an array, found {}", kind(other)),
        )),
    }
}

/// Checks that no lower bound exceeds its upper bound.
fn check_bounds(fields: &Map<String, Value>, place: &str) -> Result<(), GrammarError> {
    for (least, most) in [
        ("minLength", "maxLength"),
        ("minItems", "maxItems"),
        ("minProperties", "maxProperties"),
        ("minimum", "maximum"),
    ] {
        let number = |key: &str| fields.get(key).and_then(Value::as_f64);
        if let (Some(a), Some(b)) = (number(least), number(most))
            && a > b
        {
            return Err(refused(
                place,
                format!("{least} {a} exceeds {most} {b}, so no value is valid"),
            ));
        }
    }
    Ok(())
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

/// Returns the values that a schema accepts, if it lists them; `None` otherwise. Further restrictions can exclude
/// some of the values.
fn values(schema: &Value) -> Option<Vec<&Value>> {
    if let Some(value) = schema.get("const") {
        return Some(vec![value]);
    }
    schema.get("enum")?.as_array().map(|list| list.iter().collect())
}

/// Returns the types that a schema lists in `type`.
fn types(schema: &Value) -> Option<Vec<&str>> {
    match schema.get("type")? {
        Value::String(name) => Some(vec![name]),
        Value::Array(names) => names.iter().map(Value::as_str).collect(),
        _ => None,
    }
}
