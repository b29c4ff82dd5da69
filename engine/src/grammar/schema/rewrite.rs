//! Rewrites keywords that the grammar compiler lacks into keywords that it supports. Rejects those without an
//! equivalent.

use serde_json::{Map, Value, json};

use super::{Bundler, Rewritten, TYPES, pattern, refused, types, unsupported, values};
use crate::grammar::GrammarError;

/// Keywords whose subschemas can evaluate properties and items.
const APPLICATORS: [&str; 6] = ["$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"];
/// Maximum number of values whose arrangements without repetition are listed.
const MAX_PERMUTED: usize = 5;
/// Maximum number of values whose selections in order are listed.
const MAX_SELECTED: usize = 8;

impl Bundler<'_> {
    /// Rewrites the keywords of a schema that the grammar compiler lacks.
    pub(super) fn restrictions(
        &mut self,
        fields: &Map<String, Value>,
        place: &str,
        out: &mut Rewritten,
    ) -> Result<(), GrammarError> {
        for (key, value) in fields {
            match key.as_str() {
                "not" => self.negation(fields, value, place, out)?,
                "if" => {
                    let is_trivial = |key: &str| fields.get(key).is_none_or(accepts_all);
                    if !is_trivial("then") || !is_trivial("else") {
                        return Err(unsupported(place, key));
                    }
                }
                "uniqueItems" if *value == Value::Bool(true) => self.unique(fields, place, out)?,
                "propertyNames" => self.names_of_properties(fields, value, place, out)?,
                "contains" if fields.get("minContains") == Some(&json!(0)) && fields.get("maxContains").is_none() => {}
                "contains" => return Err(unsupported(place, key)),
                "dependentRequired" | "dependencies" | "dependentSchemas" => {
                    let all = value.as_object().into_iter().flatten();
                    for (_, needed) in all {
                        if !is_implied(fields, needed) {
                            return Err(unsupported(place, key));
                        }
                    }
                }
                "unevaluatedProperties" | "unevaluatedItems" if !accepts_all(value) => {
                    if *value != Value::Bool(false) || APPLICATORS.iter().any(|key| fields.contains_key(*key)) {
                        return Err(unsupported(place, key));
                    }
                    let closed = match key.as_str() {
                        "unevaluatedProperties" => "additionalProperties",
                        _ => "items",
                    };
                    out.fields.entry(closed).or_insert(Value::Bool(false));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Rewrites `not`: excludes listed values, types, or patterns.
    fn negation(
        &self,
        fields: &Map<String, Value>,
        not: &Value,
        place: &str,
        out: &mut Rewritten,
    ) -> Result<(), GrammarError> {
        let error = || unsupported(place, "not");
        if *not == Value::Bool(false) {
            return Ok(());
        }
        let not = self.references.target(not).ok_or_else(error)?;
        let node = Value::Object(fields.clone());
        let excluded = if has_only(not, &["const", "enum", "type"]) {
            values(not)
        } else {
            None
        };
        if let (Some(excluded), Some(all)) = (&excluded, values(&node)) {
            let left: Vec<Value> = all
                .into_iter()
                .filter(|value| !excluded.contains(value))
                .cloned()
                .collect();
            if left.is_empty() {
                return Err(refused(place, "\"not\" excludes all values"));
            }
            out.fields.remove("const");
            out.insert("enum", left.into());
            return Ok(());
        }
        let own = types(&node).unwrap_or_else(|| TYPES.to_vec());
        if let Some(excluded) = excluded {
            return exclude_texts(&own, &excluded, place, out);
        }
        if has_only(not, &["type"])
            && let Some(excluded) = types(not)
        {
            let is_number = |name: &str| name == "integer" && excluded.contains(&"number");
            let is_left = |name: &&str| !excluded.contains(name) && !is_number(name);
            let left: Vec<&str> = own.iter().copied().filter(is_left).collect();
            // Integers are numbers.
            if left.is_empty() || excluded.contains(&"integer") && left.contains(&"number") {
                return Err(error());
            }
            out.insert("type", left.into());
            return Ok(());
        }
        let is_text = types(not).is_none_or(|names| names == ["string"]);
        if has_only(not, &["pattern", "type"])
            && is_text
            && own == ["string"]
            && let Some(text) = not.get("pattern").and_then(Value::as_str)
        {
            let rest = pattern::excluded(text).map_err(|message| refused(&format!("{place}/not/pattern"), message))?;
            out.also.push(json!({ "pattern": rest }));
            return Ok(());
        }
        Err(error())
    }

    /// Rewrites `uniqueItems` for items with few values: lists all arrays.
    fn unique(&self, fields: &Map<String, Value>, place: &str, out: &mut Rewritten) -> Result<(), GrammarError> {
        let count = |key: &str| fields.get(key).and_then(Value::as_u64);
        if count("maxItems").is_some_and(|max| max <= 1) {
            return Ok(());
        }
        let error = || unsupported(place, "uniqueItems");
        let items = fields
            .get("items")
            .and_then(|items| self.references.target(items))
            .ok_or_else(error)?;
        let (yes, no, null) = (Value::Bool(true), Value::Bool(false), Value::Null);
        let mut all = match (values(items), types(items)) {
            (Some(all), names) => {
                let has_type = |value: &&Value| {
                    names
                        .as_ref()
                        .is_none_or(|names| names.iter().any(|name| is_of(value, name)))
                };
                all.into_iter().filter(has_type).collect()
            }
            (None, Some(names)) if names == ["boolean"] => vec![&yes, &no],
            (None, Some(names)) if names == ["null"] => vec![&null],
            _ => return Err(error()),
        };
        let mut known: Vec<&Value> = Vec::new();
        all.retain(|value| {
            let is_new = !known.contains(value);
            known.push(value);
            is_new
        });
        if fields.contains_key("prefixItems") || all.len() > MAX_SELECTED {
            return Err(error());
        }
        let least = count("minItems").unwrap_or(0);
        let most = count("maxItems").unwrap_or(u64::MAX);
        let mut arrays = Vec::new();
        arrangements(&all, &mut Vec::new(), all.len() <= MAX_PERMUTED, &mut arrays);
        arrays.retain(|array: &Vec<&Value>| (least..=most).contains(&(array.len() as u64)));
        if arrays.is_empty() {
            return Err(refused(place, "\"uniqueItems\" and \"minItems\" exclude every array"));
        }
        for key in ["items", "minItems", "maxItems"] {
            out.fields.remove(key);
        }
        out.insert("enum", json!(arrays));
        Ok(())
    }

    /// Rewrites `propertyNames`: lists the names, or restricts them by a pattern.
    fn names_of_properties(
        &mut self,
        fields: &Map<String, Value>,
        names: &Value,
        place: &str,
        out: &mut Rewritten,
    ) -> Result<(), GrammarError> {
        let error = || unsupported(place, "propertyNames");
        let names = self.references.target(names).ok_or_else(error)?;
        if accepts_all(names) || has_only(names, &["type"]) && names["type"] == "string" {
            return Ok(());
        }
        let other = out
            .fields
            .get("additionalProperties")
            .cloned()
            .unwrap_or(Value::Bool(true));
        let has_patterns = fields.contains_key("patternProperties");
        if has_only(names, &["const", "enum", "type"])
            && !has_patterns
            && let Some(all) = values(names)
        {
            let all: Vec<&str> = all.into_iter().filter_map(Value::as_str).collect();
            let mut properties = match out.fields.remove("properties") {
                Some(Value::Object(properties)) => properties,
                _ => Map::new(),
            };
            properties.retain(|name, _| all.contains(&name.as_str()));
            for name in all {
                properties.entry(name).or_insert_with(|| other.clone());
            }
            out.insert("properties", properties.into());
            out.insert("additionalProperties", Value::Bool(false));
            return Ok(());
        }
        let text = match (names.get("pattern"), names.get("minLength"), names.get("maxLength")) {
            (Some(Value::String(text)), None, None) => text.clone(),
            (None, least, most) if least.is_some() || most.is_some() => {
                let least = least.and_then(Value::as_u64).unwrap_or(0);
                let most = most.and_then(Value::as_u64).map(|n| n.to_string()).unwrap_or_default();
                format!("^[\\s\\S]{{{least},{most}}}$")
            }
            _ => return Err(error()),
        };
        let is_alone = !has_patterns && fields.get("properties").is_none();
        if !is_alone || !has_only(names, &["pattern", "minLength", "maxLength", "type"]) {
            return Err(error());
        }
        let patterns =
            pattern::enforceable(&text).map_err(|message| refused(&format!("{place}/propertyNames"), message))?;
        let [pattern] = &patterns[..] else { return Err(error()) };
        out.insert("patternProperties", json!({ pattern.as_str(): other }));
        out.insert("additionalProperties", Value::Bool(false));
        Ok(())
    }
}

/// Excludes listed values from schemas that accept strings.
fn exclude_texts(own: &[&str], excluded: &[&Value], place: &str, out: &mut Rewritten) -> Result<(), GrammarError> {
    let relevant = excluded
        .iter()
        .filter(|value| own.iter().any(|name| is_of(value, name)));
    let texts: Option<Vec<String>> = relevant.map(|value| value.as_str().map(pattern::literal)).collect();
    match texts {
        Some(texts) if texts.is_empty() => Ok(()),
        Some(texts) => {
            let all = format!("^(?:{})$", texts.join("|"));
            let rest = pattern::excluded(&all).map_err(|message| refused(&format!("{place}/not"), message))?;
            out.also.push(json!({ "pattern": rest }));
            Ok(())
        }
        None => Err(unsupported(place, "not")),
    }
}

/// Adds all arrays of different values: in every order, or only in the order given.
fn arrangements<'v>(
    all: &[&'v Value],
    chosen: &mut Vec<&'v Value>,
    in_any_order: bool,
    arrays: &mut Vec<Vec<&'v Value>>,
) {
    arrays.push(chosen.clone());
    let last = chosen
        .last()
        .and_then(|last| all.iter().position(|value| value == last));
    let from = if in_any_order { 0 } else { last.map_or(0, |at| at + 1) };
    for value in &all[from..] {
        if !chosen.contains(value) {
            chosen.push(value);
            arrangements(all, chosen, in_any_order, arrays);
            chosen.pop();
        }
    }
}

/// Returns true if a schema accepts every value.
fn accepts_all(schema: &Value) -> bool {
    match schema {
        Value::Bool(accepts) => *accepts,
        Value::Object(_) => has_only(schema, &[]),
        _ => false,
    }
}

/// Returns true if a schema has no other restrictions than `keys`.
fn has_only(schema: &Value, keys: &[&str]) -> bool {
    const ANNOTATIONS: [&str; 10] = [
        "title",
        "description",
        "default",
        "examples",
        "$comment",
        "deprecated",
        "readOnly",
        "writeOnly",
        "$defs",
        "definitions",
    ];
    let is_known =
        |key: &String| keys.contains(&key.as_str()) || ANNOTATIONS.contains(&key.as_str()) || key.starts_with("x-");
    schema.as_object().is_some_and(|fields| fields.keys().all(is_known))
}

/// Returns true if the properties that a dependency needs are required anyway.
fn is_implied(fields: &Map<String, Value>, needed: &Value) -> bool {
    let required = fields.get("required").and_then(Value::as_array);
    match needed {
        Value::Array(names) => names
            .iter()
            .all(|name| required.is_some_and(|required| required.contains(name))),
        schema => accepts_all(schema),
    }
}

fn is_of(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "integer" => value.as_f64().is_some_and(|x| x.fract() == 0.0),
        _ => value.is_number(),
    }
}
