//! JSON types that a tool argument may have. Models that write arguments between markers do not quote strings, so
//! the type decides how a value is read.

use serde_json::{Map, Value as Json};

use super::literal::value_of;

/// Set of JSON types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueTypes(u8);

const NULL: u8 = 1;
const BOOLEAN: u8 = 2;
const NUMBER: u8 = 4;
const STRING: u8 = 8;
const ARRAY: u8 = 16;
const OBJECT: u8 = 32;
const ANY: u8 = 63;
/// Maximum depth of references and alternatives that are followed.
const MAX_DEPTH: usize = 8;
/// Maximum number of alternatives that are read.
const MAX_OPTIONS: usize = 32;

impl ValueTypes {
    /// Returns the types of an argument according to the schema of the arguments; all types if the schema does
    /// not restrict them.
    pub fn of(parameters: &Json, name: &str) -> ValueTypes {
        let root = resolved(parameters, parameters);
        let schema = root.get("properties").and_then(|properties| properties.get(name));
        ValueTypes(schema.map_or(ANY, |schema| of_schema(parameters, schema, 0)))
    }

    /// Returns the types of a value according to its schema; all types without a schema.
    pub fn of_schema(root: &Json, schema: Option<&Json>) -> ValueTypes {
        ValueTypes(schema.map_or(ANY, |schema| of_schema(root, schema, 0)))
    }

    /// Returns true if the value may be a list.
    pub fn allows_lists(self) -> bool {
        self.0 & ARRAY != 0
    }

    /// Reads the text of an element. An element without content is an empty list or object, unless strings are
    /// allowed.
    pub fn element(self, text: &str) -> Json {
        let is_empty = text.trim().is_empty() && self.0 & STRING == 0;
        match self.0 {
            types if is_empty && types & ARRAY != 0 => Json::Array(Vec::new()),
            types if is_empty && types & OBJECT != 0 => Json::Object(Map::new()),
            _ => self.value(text),
        }
    }

    /// Returns true if the value is a string.
    pub fn is_text(self) -> bool {
        self.0 == STRING
    }

    /// Reads a complete value. Text of a different type than the schema allows is a string, if strings are allowed.
    pub fn value(self, text: &str) -> Json {
        if self.is_text() {
            return text.into();
        }
        match value_of(text.trim()) {
            Some(value) if self.0 & of_value(&value) != 0 || self.0 & STRING == 0 => value,
            _ => text.into(),
        }
    }
}

/// Returns the schema of a property of an object.
pub fn property_schema<'a>(root: &'a Json, schema: &'a Json, name: &str) -> Option<&'a Json> {
    part_of(root, schema, 0, &|schema: &'a Json| schema.get("properties")?.get(name))
}

/// Returns the schema of the items of a list.
pub fn item_schema<'a>(root: &'a Json, schema: &'a Json) -> Option<&'a Json> {
    part_of(root, schema, 0, &|schema: &'a Json| schema.get("items"))
}

/// Finds a part of a schema, of the definition that it refers to, or of its alternatives.
fn part_of<'a>(
    root: &'a Json,
    schema: &'a Json,
    depth: usize,
    part: &dyn Fn(&'a Json) -> Option<&'a Json>,
) -> Option<&'a Json> {
    if depth > MAX_DEPTH {
        return None;
    }
    let target = resolved(root, schema);
    if !std::ptr::eq(target, schema) {
        return part_of(root, target, depth + 1, part);
    }
    part(schema).or_else(|| {
        let lists = ["anyOf", "oneOf", "allOf"]
            .iter()
            .filter_map(|key| schema.get(key)?.as_array());
        let mut options = lists.flat_map(|options| options.iter().take(MAX_OPTIONS));
        options.find_map(|option| part_of(root, option, depth + 1, part))
    })
}

/// Follows the reference of a schema once.
fn resolved<'a>(root: &'a Json, schema: &'a Json) -> &'a Json {
    let target = schema.get("$ref").and_then(Json::as_str);
    let target = target.and_then(|target| root.pointer(target.strip_prefix('#')?));
    target.unwrap_or(schema)
}

fn of_schema(root: &Json, schema: &Json, depth: usize) -> u8 {
    if depth > MAX_DEPTH {
        return ANY;
    }
    if schema.get("$ref").is_some() {
        let target = resolved(root, schema);
        let is_same = std::ptr::eq(target, schema);
        return if is_same {
            ANY
        } else {
            of_schema(root, target, depth + 1)
        };
    }
    if let Some(value) = schema.get("const") {
        return of_value(value);
    }
    if let Some(Json::Array(list)) = schema.get("enum") {
        return list.iter().fold(0, |all, value| all | of_value(value));
    }
    match schema.get("type") {
        Some(Json::String(name)) => return of_name(name),
        Some(Json::Array(names)) => {
            let names = names.iter().filter_map(Json::as_str);
            return names.fold(0, |all, name| all | of_name(name));
        }
        _ => {}
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(Json::Array(options)) = schema.get(key) {
            let options = options.iter().take(MAX_OPTIONS);
            return options.fold(0, |all, option| all | of_schema(root, option, depth + 1));
        }
    }
    if let Some(Json::Array(all)) = schema.get("allOf") {
        let all = all.iter().take(MAX_OPTIONS);
        return all.fold(ANY, |types, part| types & of_schema(root, part, depth + 1));
    }
    ANY
}

fn of_name(name: &str) -> u8 {
    match name {
        "null" => NULL,
        "boolean" => BOOLEAN,
        "integer" | "number" => NUMBER,
        "string" => STRING,
        "array" => ARRAY,
        "object" => OBJECT,
        _ => ANY,
    }
}

fn of_value(value: &Json) -> u8 {
    match value {
        Json::Null => NULL,
        Json::Bool(_) => BOOLEAN,
        Json::Number(_) => NUMBER,
        Json::String(_) => STRING,
        Json::Array(_) => ARRAY,
        Json::Object(_) => OBJECT,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn value_has_a_type_that_the_schema_allows() {
        let parameters = json!({"$ref": "#/$defs/P", "$defs": {"P": {"properties": {
            "text": {"type": "string"},
            "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "number": {"type": ["integer", "string"]},
            "node": {"$ref": "#/$defs/N"},
            "loop": {"$ref": "#/$defs/L"},
            "choice": {"enum": ["1", "x"]},
        }}, "N": {"type": "object"}, "L": {"$ref": "#/$defs/L"}}});
        for (name, text, value) in [
            ("text", "12", json!("12")),
            ("maybe", "12", json!("12")),
            ("maybe", "null", json!(null)),
            ("maybe", " a\n", json!(" a\n")),
            ("number", "12", json!(12)),
            ("number", "true", json!("true")),
            ("node", "{\"a\": 1}", json!({"a": 1})),
            ("node", "12", json!(12)),
            ("loop", "12", json!(12)),
            ("choice", "1", json!("1")),
            ("unknown", "12", json!(12)),
            ("unknown", "some text", json!("some text")),
        ] {
            assert_eq!(ValueTypes::of(&parameters, name).value(text), value, "{name}: {text}");
        }
    }
}
