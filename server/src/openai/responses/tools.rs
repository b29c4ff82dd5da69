//! Tools of a Responses API request. The model sees all of them as functions: plain functions, grouped
//! functions (`namespace`), and tools with string input (`custom`).

use std::collections::HashMap;

use serde_json::{Value as Json, json};

use crate::api::{ApiError, ApiResult, Fields};
use crate::chat::tools::{ToolChoice, Tools, checked};

/// Parameter name under which the model passes the input of a custom tool.
const INPUT: &str = "input";

/// Kind of a tool that is not a plain function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolKind {
    /// Function that belongs to a namespace.
    Grouped {
        /// Name of the namespace.
        namespace: String,
        /// Function name within the namespace.
        name: String,
    },
    /// Custom tool with string input.
    Text,
}

/// Tools that are not plain functions, by their name in the prompt.
pub type ToolKinds = HashMap<String, ToolKind>;

/// Parsed tool fields.
#[derive(Debug, Default)]
pub struct ParsedTools {
    /// Tools that the model may call.
    pub tools: Option<Tools>,
    /// Original kinds of tools that are not plain functions.
    pub kinds: ToolKinds,
    /// Names of ignored tools for the warning header.
    pub ignored_fields: Vec<String>,
}

/// Returns the name in the prompt of a function in a namespace.
pub fn grouped(namespace: &str, name: &str) -> String {
    format!("{namespace}__{name}")
}

/// Returns the arguments of a custom tool as JSON.
pub fn text_arguments(text: &Json) -> String {
    json!({ INPUT: text }).to_string()
}

/// Returns the input of a custom tool. Returns the raw arguments if the JSON is incomplete.
pub fn text_of_arguments(arguments: &str) -> String {
    let read = serde_json::from_str::<Json>(arguments).ok();
    let text = read.as_ref().and_then(|arguments| arguments[INPUT].as_str());
    text.unwrap_or(arguments).to_owned()
}

/// Reads the tools and the tool choice.
pub fn read(fields: &mut Fields) -> ApiResult<ParsedTools> {
    let parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
    let (mut list, mut others, mut kinds) = (Vec::new(), Vec::new(), ToolKinds::new());
    for tool in fields.list("tools")?.unwrap_or_default() {
        match tool["type"].as_str() {
            Some("function") => list.push(function(tool)),
            Some("custom") => {
                if let Some(name) = tool["name"].as_str() {
                    kinds.insert(name.to_owned(), ToolKind::Text);
                }
                list.push(taking_text(&tool));
            }
            Some("namespace") => group(&tool, &mut list, &mut kinds)?,
            Some(kind) => others.push(kind.chars().take(32).filter(char::is_ascii_alphanumeric).collect()),
            None => return Err(ApiError::field("tools", "a tool has no type")),
        }
    }
    let others: Vec<String> = others;
    let ignored_fields = if others.is_empty() {
        Vec::new()
    } else {
        vec![format!("tools of types {}", others.join(" "))]
    };
    let tools = match choice(fields.take("tool_choice"))? {
        None => None,
        Some(choice) => checked(list, choice, parallel)?,
    };
    Ok(ParsedTools {
        tools,
        kinds,
        ignored_fields,
    })
}

/// Reads the tool choice; `None` means that no tool may be called.
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

/// Converts a function to the format of chat completions.
fn function(mut tool: Json) -> Json {
    tool.as_object_mut().map(|fields| fields.remove("type"));
    json!({ "type": "function", "function": tool })
}

/// Converts a custom tool to a function with one string parameter. If the tool has a grammar, the description
/// includes it.
fn taking_text(tool: &Json) -> Json {
    let mut description = tool["description"].as_str().unwrap_or_default().to_owned();
    if let Some(grammar) = tool["format"]["definition"].as_str() {
        let syntax = tool["format"]["syntax"].as_str().unwrap_or_default();
        description += &format!("\n\nThe {INPUT} must match this grammar ({syntax}):\n{grammar}");
    }
    let parameters = json!({
        "type": "object", "properties": { INPUT: { "type": "string" } }, "required": [INPUT], "additionalProperties": false,
    });
    let function = json!({ "name": tool["name"], "description": description, "parameters": parameters });
    json!({ "type": "function", "function": function })
}

/// Adds the functions of a namespace.
fn group(tool: &Json, list: &mut Vec<Json>, kinds: &mut ToolKinds) -> ApiResult<()> {
    let wrong = || {
        ApiError::field(
            "tools",
            "expected a namespace with a name and a list of named functions",
        )
    };
    let namespace = tool["name"].as_str().ok_or_else(wrong)?;
    for tool in tool["tools"].as_array().ok_or_else(wrong)? {
        if tool["type"] != "function" {
            return Err(wrong());
        }
        let name = tool["name"].as_str().ok_or_else(wrong)?;
        let known = grouped(namespace, name);
        let mut of_group = tool.clone();
        of_group["name"] = known.as_str().into();
        list.push(function(of_group));
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        kinds.insert(known, ToolKind::Grouped { namespace, name });
    }
    Ok(())
}
