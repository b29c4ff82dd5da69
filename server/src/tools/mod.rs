//! Functions that a model may call: what is told of them, how calls are told from text, and what an answer has to be where one must be called.

mod format;
mod split;

pub use format::ToolFormat;
pub use split::{Call, Said, ToolSplit};

use engine::grammar::Grammar;
use engine::vocab::{TokenAttr, Vocab};
use serde_json::{Map, Value as Json, json};

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
    /// Their names.
    pub fn names(&self) -> Vec<String> {
        let name = |tool: &Json| text_of(tool["function"]["name"].clone());
        self.list.iter().filter_map(name).collect()
    }

    /// What the answer has to be, if a function has to be called; the schemas of arguments, which have to be possible by themselves.
    pub fn grammar(&self, format: &ToolFormat, vocab: &Vocab) -> ApiResult<Option<(Grammar, Vec<Grammar>)>> {
        let is_wanted = |tool: &&Json| match &self.choice {
            ToolChoice::Auto => false,
            ToolChoice::Required => true,
            ToolChoice::Named(name) => tool["function"]["name"] == name.as_str(),
        };
        let wanted: Vec<&Json> = self.list.iter().filter(is_wanted).collect();
        if wanted.is_empty() {
            return Ok(None);
        }
        let schemas = wanted
            .iter()
            .map(|tool| Grammar::JsonSchema(Json::Object(parameters(tool)).to_string()))
            .collect();
        let mut definitions = Definitions::default();
        let mut calls = Vec::with_capacity(wanted.len());
        for tool in &wanted {
            let properties = Map::from_iter([
                (format.name.clone(), json!({ "const": tool["function"]["name"] })),
                (format.arguments.clone(), definitions.without(parameters(tool))?),
            ]);
            calls.push(json!({ "type": "object", "properties": properties, "required": [format.name, format.arguments], "additionalProperties": false }));
        }
        let mut schema = match calls.len() {
            1 => calls.remove(0),
            _ => json!({ "anyOf": calls }),
        };
        for (key, definitions) in definitions.0 {
            schema[key] = definitions;
        }
        schema["x-guidance"] = json!({ "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": " });
        let (open, close) = (literal(&format.open, vocab), literal(&format.close, vocab));
        let text = format!("%llguidance {{}}\nstart: {open} call {close}\ncall: %json {schema}\n");
        Ok(Some((Grammar::Gbnf(text), schemas)))
    }
}

/// The schema of a function's arguments.
fn parameters(tool: &Json) -> Map<String, Json> {
    match &tool["function"]["parameters"] {
        Json::Object(schema) => schema.clone(),
        _ => Map::from_iter([
            ("type".to_owned(), "object".into()),
            ("additionalProperties".to_owned(), false.into()),
        ]),
    }
}

/// Definitions that schemas refer to from their root, which is another one within a call.
#[derive(Default)]
struct Definitions(Map<String, Json>);

impl Definitions {
    /// A schema without its definitions, which are kept here. An error if another schema has another one of that name.
    fn without(&mut self, mut schema: Map<String, Json>) -> ApiResult<Json> {
        for key in ["$defs", "definitions"] {
            let Some(Json::Object(found)) = schema.remove(key) else {
                continue;
            };
            let known = self.0.entry(key).or_insert_with(|| Map::new().into());
            for (name, definition) in found {
                if known.get(&name).is_some_and(|other| *other != definition) {
                    return Err(ApiError::field(
                        "tools",
                        format_args!("two schemas define {name:?} in different ways"),
                    ));
                }
                known[&name] = definition;
            }
        }
        Ok(Json::Object(schema))
    }
}

/// A text in llguidance's notation, in which control tokens stand by their names and not for what those look like.
fn literal(text: &str, vocab: &Vocab) -> String {
    let mut parts = Vec::new();
    let mut plain = String::new();
    let mut rest = text;
    let names: Vec<_> = vocab
        .tokenize(text, false, true)
        .into_iter()
        .filter(|&t| vocab.attr(t).intersects(TokenAttr::CONTROL))
        .collect();
    for token in names {
        let name = vocab.text(token).into_owned();
        let Some((before, behind)) = rest
            .split_once(name.as_str())
            .filter(|_| name.starts_with('<') && name.ends_with('>'))
        else {
            continue;
        };
        plain.push_str(before);
        if !plain.is_empty() {
            parts.push(Json::from(std::mem::take(&mut plain)).to_string());
        }
        parts.push(name);
        rest = behind;
    }
    plain.push_str(rest);
    if !plain.is_empty() {
        parts.push(Json::from(plain).to_string());
    }
    parts.join(" ")
}
