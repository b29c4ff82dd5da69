//! Tools that a request declares, in OpenAI's format.

use std::sync::Arc;

use engine::grammar::{GrammarError, enforceable_schema};
use serde_json::{Map, Value as Json, json};

use crate::api::{ApiError, ApiResult, Fields, text_of};

/// Tools of a request.
#[derive(Clone, Debug, Default)]
pub struct Tools {
    /// Tool definitions as chat templates expect them: objects of type `function`.
    pub list: Vec<Json>,
    /// Tool choice of the request.
    pub choice: ToolChoice,
    /// Several calls per completion are allowed.
    pub parallel: bool,
}

/// A function that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Function {
    pub name: String,
    /// JSON schema of the arguments.
    pub parameters: Json,
}

/// Constraint on which function is called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// Any function or none.
    #[default]
    Auto,
    /// The model must make at least one call, of any function.
    Required,
    /// A call of this function.
    Named(String),
}

/// Maximum number of tools per request.
const MAX_TOOLS: usize = 256;

/// Reads the tools in OpenAI's format. Returns `None` if the request has no tools or its tool choice is `none`.
pub fn tools(fields: &mut Fields) -> ApiResult<Option<Tools>> {
    let mut list = fields.list("tools")?.unwrap_or_default();
    if let Some(functions) = fields.list("functions")? {
        list.extend(
            functions
                .into_iter()
                .map(|f| json!({ "type": "function", "function": f })),
        );
    }
    let parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
    let choice = match (fields.take("tool_choice"), fields.take("function_call")) {
        (None, None) => None,
        (Some(choice), _) => Some(choice),
        // The older form names the function directly.
        (None, Some(Json::Object(named))) => Some(json!({ "function": named })),
        (None, Some(word)) => Some(word),
    };
    let choice = match choice {
        None => ToolChoice::Auto,
        Some(Json::String(word)) => match word.as_str() {
            "auto" => ToolChoice::Auto,
            "required" => ToolChoice::Required,
            "none" => return Ok(None),
            _ => {
                return Err(ApiError::field(
                    "tool_choice",
                    "expected auto, required, none, or a function",
                ));
            }
        },
        Some(object) => {
            let name = object["function"]["name"].as_str();
            let wrong = || {
                ApiError::field(
                    "tool_choice",
                    "expected {\"type\": \"function\", \"function\": {\"name\": …}}",
                )
            };
            ToolChoice::Named(name.ok_or_else(wrong)?.to_owned())
        }
    };
    checked(list, choice, parallel)
}

/// Validates tool definitions and the tool choice.
pub fn checked(list: Vec<Json>, choice: ToolChoice, parallel: bool) -> ApiResult<Option<Tools>> {
    if list.len() > MAX_TOOLS {
        return Err(ApiError::field(
            "tools",
            format_args!("expected at most {MAX_TOOLS} tools, found {}", list.len()),
        ));
    }
    for (i, tool) in list.iter().enumerate() {
        let wrong = |what: &str| ApiError::field(&format!("tools[{i}]"), what);
        if tool["type"] != "function" {
            return Err(wrong("expected type function"));
        }
        if tool["function"]["name"].as_str().is_none_or(str::is_empty) {
            return Err(wrong("the function has no name"));
        }
        if !matches!(
            tool["function"].get("parameters"),
            None | Some(Json::Null | Json::Object(_))
        ) {
            return Err(wrong("parameters: expected a JSON schema object"));
        }
    }
    let tools = Tools { list, choice, parallel };
    match &tools.choice {
        ToolChoice::Named(name) if !tools.names().contains(name) => Err(ApiError::field(
            "tool_choice",
            "unknown function; expected one of `tools`",
        )),
        ToolChoice::Required if tools.list.is_empty() => Err(ApiError::field(
            "tool_choice",
            "cannot require a call: `tools` is empty",
        )),
        _ if tools.list.is_empty() => Ok(None),
        _ => Ok(Some(tools)),
    }
}

impl Tools {
    /// Returns the functions.
    pub fn functions(&self) -> Arc<[Function]> {
        let function = |tool: &Json| Function {
            name: text_of(tool["function"]["name"].clone()).unwrap_or_default(),
            parameters: tool["function"]["parameters"].clone(),
        };
        self.list.iter().map(function).collect()
    }

    /// Returns the function names.
    pub fn names(&self) -> Vec<String> {
        let name = |tool: &Json| text_of(tool["function"]["name"].clone());
        self.list.iter().filter_map(name).collect()
    }

    /// Returns the functions that satisfy a required call.
    pub(super) fn required_functions(&self) -> Vec<Function> {
        let is_wanted = |f: &&Function| match &self.choice {
            ToolChoice::Auto => false,
            ToolChoice::Required => true,
            ToolChoice::Named(name) => f.name == *name,
        };
        self.functions()
            .iter()
            .filter(is_wanted)
            .map(Function::closed)
            .collect()
    }
}

impl Function {
    /// Returns the schema of the arguments; without one, the function takes no arguments.
    pub(super) fn schema(&self) -> Json {
        match &self.parameters {
            Json::Object(_) => self.parameters.clone(),
            _ => json!({ "type": "object", "additionalProperties": false }),
        }
    }

    /// Returns the function with its schema reduced to restrictions that a grammar can enforce. References point
    /// into `$defs`, so that the schema can be embedded in another one.
    pub(super) fn enforceable(&self) -> Result<Function, GrammarError> {
        let mut schema = enforceable_schema(&self.schema())?;
        // Libraries write a recursive type as a reference to its definition.
        if let Some(fields) = schema.as_object_mut()
            && fields.keys().all(|key| key == "$ref" || key == "$defs")
            && let Some(target) = fields.get("$ref").and_then(Json::as_str)
            && let Some(Json::Object(mut root)) = target
                .strip_prefix("#/$defs/")
                .and_then(|name| fields.get("$defs")?.get(name).cloned())
        {
            root.extend(fields.remove("$defs").map(|defs| ("$defs".to_owned(), defs)));
            schema = Json::Object(root);
        }
        Ok(Function {
            name: self.name.clone(),
            parameters: schema,
        })
    }

    /// Returns the function with `additionalProperties: false`, unless its schema controls additional
    /// properties. Models that are forced to call invent arguments. Voluntary calls are not restricted,
    /// because the model would put its content into another argument.
    pub(super) fn closed(&self) -> Function {
        let mut function = self.clone();
        if let Json::Object(schema) = &mut function.parameters
            && let Some(Json::Object(properties)) = schema.get("properties")
            && requires_only(schema, properties)
            && !OPENING.iter().any(|key| schema.contains_key(*key))
        {
            schema.insert("additionalProperties".to_owned(), false.into());
        }
        function
    }
}

/// Returns true if a schema requires no property that it does not list.
fn requires_only(schema: &Map<String, Json>, properties: &Map<String, Json>) -> bool {
    let required = schema.get("required").and_then(Json::as_array).into_iter().flatten();
    required
        .filter_map(Json::as_str)
        .all(|name| properties.contains_key(name))
}

/// Keywords that control additional properties, directly or through a subschema.
const OPENING: [&str; 12] = [
    "additionalProperties",
    "unevaluatedProperties",
    "patternProperties",
    "propertyNames",
    "dependentSchemas",
    "minProperties",
    "$ref",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_function_forbids_additional_properties() {
        let schema = |parameters: Json| {
            let name = "f".to_owned();
            Function { name, parameters }.closed().schema()
        };
        let named = json!({"type": "object", "properties": {"a": {"type": "object", "properties": {}}}});
        let mut closed = named.clone();
        closed["additionalProperties"] = false.into();
        assert_eq!(schema(named.clone()), closed, "nested objects are unchanged");
        for (key, value) in [
            ("additionalProperties", json!(true)),
            ("allOf", json!([{"properties": {"b": {}}}])),
            ("patternProperties", json!({"^x": {}})),
            ("required", json!(["unlisted"])),
        ] {
            let mut open = named.clone();
            open[key] = value;
            assert_eq!(schema(open.clone()), open);
        }
        assert_eq!(schema(json!({"type": "object"})), json!({"type": "object"}), "any");
        assert_eq!(schema(Json::Null)["additionalProperties"], false, "none");
    }
}
