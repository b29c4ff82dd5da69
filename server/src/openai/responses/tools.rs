//! Tools of a request, all of which the model knows as functions: functions, groups of them (`namespace`), and tools that take a text (`custom`).

use std::collections::HashMap;

use serde_json::{Value as Json, json};

use crate::api::{ApiError, ApiResult, Fields};
use crate::tools::{ToolChoice, Tools, checked};

/// What the one argument of a tool is called that takes a text.
const INPUT: &str = "input";

/// How calls are told of a tool that is no plain function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A function of a group.
    Grouped {
        /// The group.
        namespace: String,
        /// The function in it.
        name: String,
    },
    /// A tool that takes a text.
    Text,
}

/// Tools that are no plain functions, by the names that the model knows.
pub type Kinds = HashMap<String, Kind>;

/// What a request says of tools.
#[derive(Debug, Default)]
pub struct Read {
    /// Functions that may be called.
    pub tools: Option<Tools>,
    /// How calls of some are told.
    pub kinds: Kinds,
    /// What is left out.
    pub left_out: Vec<String>,
}

/// The name by which the model knows a function of a group.
pub fn grouped(namespace: &str, name: &str) -> String {
    format!("{namespace}__{name}")
}

/// The arguments of a tool that takes a text.
pub fn text_arguments(text: &Json) -> String {
    json!({ INPUT: text }).to_string()
}

/// The text that a tool is called with; the arguments as they stand where the answer was cut off.
pub fn text_of_arguments(arguments: &str) -> String {
    let read = serde_json::from_str::<Json>(arguments).ok();
    let text = read.as_ref().and_then(|arguments| arguments[INPUT].as_str());
    text.unwrap_or(arguments).to_owned()
}

/// Reads what may be called, and what has to be.
pub fn read(fields: &mut Fields) -> ApiResult<Read> {
    let parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
    let (mut list, mut others, mut kinds) = (Vec::new(), Vec::new(), Kinds::new());
    for tool in fields.list("tools")?.unwrap_or_default() {
        match tool["type"].as_str() {
            Some("function") => list.push(function(tool)),
            Some("custom") => {
                if let Some(name) = tool["name"].as_str() {
                    kinds.insert(name.to_owned(), Kind::Text);
                }
                list.push(taking_text(&tool));
            }
            Some("namespace") => group(&tool, &mut list, &mut kinds)?,
            Some(kind) => others.push(kind.chars().take(32).filter(char::is_ascii_alphanumeric).collect()),
            None => return Err(ApiError::field("tools", "a tool has no type")),
        }
    }
    let others: Vec<String> = others;
    let left_out = match others.is_empty() {
        true => Vec::new(),
        false => vec![format!("tools of the types {}", others.join(" "))],
    };
    let tools = match choice(fields.take("tool_choice"))? {
        None => None,
        Some(choice) => checked(list, choice, parallel)?,
    };
    Ok(Read { tools, kinds, left_out })
}

/// Which has to be called; `None`: none may be.
fn choice(given: Option<Json>) -> ApiResult<Option<ToolChoice>> {
    let wrong = || {
        ApiError::field(
            "tool_choice",
            "expected auto, required, none, or {\"type\": \"function\", \"name\": …}",
        )
    };
    let choice = match given {
        None => ToolChoice::Auto,
        Some(Json::String(word)) => match word.as_str() {
            "auto" => ToolChoice::Auto,
            "required" => ToolChoice::Required,
            "none" => return Ok(None),
            _ => return Err(wrong()),
        },
        Some(object) => match (object["type"].as_str(), object["name"].as_str()) {
            (Some("function" | "custom"), Some(name)) => {
                let namespace = object["namespace"].as_str();
                ToolChoice::Named(namespace.map_or_else(|| name.to_owned(), |of| grouped(of, name)))
            }
            _ => return Err(wrong()),
        },
    };
    Ok(Some(choice))
}

/// A function as chats have it.
fn function(mut tool: Json) -> Json {
    tool.as_object_mut().map(|fields| fields.remove("type"));
    json!({ "type": "function", "function": tool })
}

/// A tool that takes a text, as a function with one argument. What a grammar asks of the text is told.
fn taking_text(tool: &Json) -> Json {
    let mut description = tool["description"].as_str().unwrap_or_default().to_owned();
    if let Some(grammar) = tool["format"]["definition"].as_str() {
        let syntax = tool["format"]["syntax"].as_str().unwrap_or_default();
        description += &format!("\n\nThe {INPUT} has to keep to this grammar ({syntax}):\n{grammar}");
    }
    let parameters = json!({
        "type": "object", "properties": { INPUT: { "type": "string" } }, "required": [INPUT], "additionalProperties": false,
    });
    let function = json!({ "name": tool["name"], "description": description, "parameters": parameters });
    json!({ "type": "function", "function": function })
}

/// Adds the functions of a group.
fn group(tool: &Json, list: &mut Vec<Json>, kinds: &mut Kinds) -> ApiResult<()> {
    let wrong = || {
        ApiError::field(
            "tools",
            "expected a namespace with a name, and tools that are functions with names",
        )
    };
    let namespace = tool["name"].as_str().ok_or_else(wrong)?;
    for tool in tool["tools"].as_array().ok_or_else(wrong)? {
        let name = tool["name"]
            .as_str()
            .filter(|_| tool["type"] == "function")
            .ok_or_else(wrong)?;
        let known = grouped(namespace, name);
        let mut of_group = tool.clone();
        of_group["name"] = known.as_str().into();
        list.push(function(of_group));
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        kinds.insert(known, Kind::Grouped { namespace, name });
    }
    Ok(())
}
