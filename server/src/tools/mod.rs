//! Functions that a model may call: what is told of them, how calls are told from text, and what an answer has to be where one must be called.

mod format;
mod generic;
mod grammar;
mod harmony;
mod header;
mod lazy;
mod literal;
mod marks;
mod split;
#[cfg(test)]
mod tests;

pub use format::{Form, ToolFormat};
pub use generic::{as_text, generic_format};
pub use harmony::{FINAL as HARMONY_FINAL, Harmony};
pub use split::{Said, ToolSplit};

use std::sync::Arc;

use serde_json::{Value as Json, json};

use crate::api::{ApiError, ApiResult, Fields, text_of};

/// Functions of a request.
#[derive(Clone, Debug, Default)]
pub struct Tools {
    /// As templates take them: objects of the type `function`.
    pub list: Vec<Json>,
    /// Which of them has to be called.
    pub choice: ToolChoice,
    /// Several may be called at once.
    pub parallel: bool,
}

/// A function that may be called.
#[derive(Clone, Debug, PartialEq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// The schema of its arguments.
    pub parameters: Json,
}

/// A call of a function.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Call {
    /// The function.
    pub name: String,
    /// An object of JSON, unless the answer was cut off.
    pub arguments: String,
}

/// Which function has to be called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// Any or none.
    #[default]
    Auto,
    /// One of them.
    Required,
    /// This one.
    Named(String),
}

/// Functions in one request.
const MAX_TOOLS: usize = 256;

/// The functions that fields tell of, as OpenAI has them; `None` if there are none, or none is to be called.
pub fn tools(fields: &mut Fields) -> ApiResult<Option<Tools>> {
    let list = fields.list("tools")?.unwrap_or_default();
    let parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
    let choice = match fields.take("tool_choice") {
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

/// Functions, each of which has a name.
pub fn checked(list: Vec<Json>, choice: ToolChoice, parallel: bool) -> ApiResult<Option<Tools>> {
    if list.len() > MAX_TOOLS {
        return Err(ApiError::field(
            "tools",
            format_args!("expected at most {MAX_TOOLS}, found {}", list.len()),
        ));
    }
    for (i, tool) in list.iter().enumerate() {
        let wrong = |what: &str| ApiError::field(&format!("tools[{i}]"), what);
        if tool["type"] != "function" {
            return Err(wrong("expected the type `function`"));
        }
        if tool["function"]["name"].as_str().is_none_or(str::is_empty) {
            return Err(wrong("the function has no name"));
        }
        if !matches!(
            tool["function"].get("parameters"),
            None | Some(Json::Null | Json::Object(_))
        ) {
            return Err(wrong("its parameters are no schema"));
        }
    }
    let tools = Tools { list, choice, parallel };
    match &tools.choice {
        ToolChoice::Named(name) if !tools.names().contains(name) => {
            Err(ApiError::field("tool_choice", "there is no function of that name"))
        }
        ToolChoice::Required if tools.list.is_empty() => {
            Err(ApiError::field("tool_choice", "there is no function to be called"))
        }
        _ if tools.list.is_empty() => Ok(None),
        _ => Ok(Some(tools)),
    }
}

impl Tools {
    /// Them, as calls are read by.
    pub fn functions(&self) -> Arc<[Function]> {
        let function = |tool: &Json| Function {
            name: text_of(tool["function"]["name"].clone()).unwrap_or_default(),
            parameters: tool["function"]["parameters"].clone(),
        };
        self.list.iter().map(function).collect()
    }

    /// Their names.
    pub fn names(&self) -> Vec<String> {
        let name = |tool: &Json| text_of(tool["function"]["name"].clone());
        self.list.iter().filter_map(name).collect()
    }

    /// Those of which one has to be called.
    fn wanted(&self) -> Vec<Function> {
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
    /// The schema of its arguments, which are none where it has none.
    fn schema(&self) -> Json {
        match &self.parameters {
            Json::Object(_) => self.parameters.clone(),
            _ => json!({ "type": "object", "additionalProperties": false }),
        }
    }

    /// The same function with no arguments but those that it names, unless its schema says which: a model that is made to call makes some up. Where it calls
    /// by itself it is left what its schema leaves it, since it would fill an argument of another meaning with what it wanted to say.
    fn closed(&self) -> Function {
        let mut function = self.clone();
        if let Json::Object(schema) = &mut function.parameters
            && schema.contains_key("properties")
            && !OPENING.iter().any(|key| schema.contains_key(*key))
        {
            schema.insert("additionalProperties".to_owned(), false.into());
        }
        function
    }
}

/// Keywords that say which other properties an object may have, or may say so elsewhere.
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
mod of_functions {
    use super::*;

    #[test]
    fn arguments_are_those_that_a_function_names() {
        let schema = |parameters: Json| {
            let name = "f".to_owned();
            Function { name, parameters }.closed().schema()
        };
        let named = json!({"type": "object", "properties": {"a": {"type": "object", "properties": {}}}});
        let mut closed = named.clone();
        closed["additionalProperties"] = false.into();
        assert_eq!(
            schema(named.clone()),
            closed,
            "objects within are as the schema has them"
        );
        for (key, value) in [
            ("additionalProperties", json!(true)),
            ("allOf", json!([{"properties": {"b": {}}}])),
            ("patternProperties", json!({"^x": {}})),
        ] {
            let mut open = named.clone();
            open[key] = value;
            assert_eq!(schema(open.clone()), open);
        }
        assert_eq!(schema(json!({"type": "object"})), json!({"type": "object"}), "any");
        assert_eq!(schema(Json::Null)["additionalProperties"], false, "none");
    }
}
