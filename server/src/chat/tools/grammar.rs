//! Grammars for required tool calls, built from the format of calls and the argument schemas.

mod elements;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;

use engine::grammar::Grammar;
use engine::vocab::{TokenAttr, Vocab};
use serde_json::{Map, Value as Json, json};

use super::call_parser::behind_arguments;
use super::definition::{Function, Tools};
use super::format::{CallSyntax, Marker, ToolFormat};

use crate::api::{ApiError, ApiResult};

/// Maximum schema depth that is enforced for values that are not JSON.
const MAX_DEPTH: usize = 8;
/// Whitespace allowed inside a document that the model writes unprompted.
const WHITE_SPACE: &str = r"[ ]|\n[ \t]{0,20}";
/// Whitespace between the parts of a call; models vary it.
pub(super) const SPACE: &str = "WS: /[ \\t\\r\\n]{1,20}/\n";
/// Regular expression of whitespace within markers.
const BLANKS: &str = r"[ \t\r\n]*";
/// Maximum length of an id in front of a name.
const MAX_ID: usize = 16;
/// Maximum number of arguments in arbitrary order; the rules track them in a 64-bit set.
const MAX_UNORDERED: usize = 63;

/// Schemas of arguments by name of the function.
type NamedSchemas = Vec<(String, Grammar)>;

impl Tools {
    /// Returns the grammar of a required call and the argument schemas by function name, which the caller must check
    /// individually. With `thinks`, Harmony output starts with reasoning.
    pub fn grammar(
        &self,
        format: &ToolFormat,
        vocab: &Vocab,
        thinks: bool,
    ) -> ApiResult<Option<(Grammar, NamedSchemas)>> {
        let mut required_functions = Vec::new();
        for function in self.required_functions() {
            let refused = |e| ApiError {
                code: Some("invalid_grammar"),
                ..ApiError::field(
                    "tools",
                    format_args!("cannot enforce the parameters of {:?}: {e}", function.name),
                )
            };
            // A reference to the root becomes a definition, which must not be open, either.
            required_functions.push(function.enforceable().map_err(refused)?.closed());
        }
        if required_functions.is_empty() {
            return Ok(None);
        }
        let schemas = required_functions
            .iter()
            .map(|f| (f.name.clone(), Grammar::JsonSchema(f.schema().to_string())))
            .collect();
        let mut rules = Rules::new(vocab);
        let mut calls = Vec::with_capacity(required_functions.len());
        for function in &required_functions {
            let header = rules.message_header(function, format);
            let open = rules.literal(&format.open);
            calls.push(format!("{header} {open} {}", rules.call(function, format)?));
        }
        let close = rules.literal(&format.close);
        let thought = rules.harmony_thought(thinks && format.form == CallSyntax::Harmony);
        let text = format!(
            "%llguidance {{}}\nstart: {thought} call {close}\ncall: {}\n{}{}",
            calls.join(" | "),
            if thought.is_empty() { "" } else { SPACE },
            rules.text
        );
        Ok(Some((Grammar::Gbnf(text), schemas)))
    }
}

/// Grammar rules in llguidance's notation.
pub(super) struct Rules<'a> {
    vocab: &'a Vocab,
    text: String,
    n: usize,
    /// Rules of the definitions that values with unquoted keys refer to, by name.
    defs: HashMap<String, String>,
    /// Lets the model choose whitespace, and the order of arguments that are not JSON.
    is_loose: bool,
}

impl<'a> Rules<'a> {
    /// Creates an empty set of strict rules.
    pub fn new(vocab: &'a Vocab) -> Rules<'a> {
        Rules {
            vocab,
            text: String::new(),
            n: 0,
            defs: HashMap::new(),
            is_loose: false,
        }
    }

    /// Creates an empty set of rules for calls that the model starts unprompted.
    pub fn loose(vocab: &'a Vocab) -> Rules<'a> {
        Rules {
            is_loose: true,
            ..Rules::new(vocab)
        }
    }

    /// Returns the rules.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Adds a rule and returns its name.
    pub(super) fn rule(&mut self, attributes: &str, body: &str) -> String {
        let name = format!("r{}", self.n);
        self.n += 1;
        // Writing to a `String` cannot fail.
        let _ = writeln!(self.text, "{name}{attributes}: {body}");
        name
    }

    /// Returns a literal with control tokens written by id; empty for an empty text.
    pub fn literal(&self, text: &str) -> String {
        let (mut parts, mut plain, mut rest) = (Vec::new(), String::new(), text);
        let tokens = self.vocab.tokenize(text, false, true).into_iter();
        for token in tokens.filter(|&t| self.vocab.attr(t).intersects(TokenAttr::CONTROL)) {
            let name = self.vocab.text(token);
            let Some((before, behind)) = rest.split_once(name.as_ref()) else {
                continue;
            };
            plain.push_str(before);
            if !plain.is_empty() {
                parts.push(Json::from(std::mem::take(&mut plain)).to_string());
            }
            parts.push(format!("<[{token}]>"));
            rest = behind;
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            parts.push(Json::from(plain).to_string());
        }
        parts.join(" ")
    }

    fn gap(&self, gap: &Marker) -> String {
        let before = self.literal(&gap.before);
        match &gap.after {
            Some(after) => format!("{before} {}", self.id_until(9, after)),
            None => before,
        }
    }

    /// Returns an id of at most `n_max` letters and digits, and the marker after the id.
    fn id_until(&self, n_max: usize, after: &str) -> String {
        let mark = self.literal(after);
        if mark.contains("<[") {
            format!("/[A-Za-z0-9]{{1,{n_max}}}/ {mark}")
        } else {
            // A single regular expression; a separate pattern for arbitrary text would match the start of the
            // marker.
            format!("/[A-Za-z0-9]{{1,{n_max}}}{}/", escaped(after))
        }
    }

    /// Adds a rule for a JSON document.
    pub fn json(&mut self, mut schema: Json) -> String {
        schema["x-guidance"] = if self.is_loose {
            json!({ "whitespace_flexible": true, "whitespace_pattern": WHITE_SPACE })
        } else {
            json!({ "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": " })
        };
        self.rule("", &format!("%json {schema}"))
    }

    /// Adds a rule for a call with its markers.
    fn call(&mut self, function: &Function, format: &ToolFormat) -> ApiResult<String> {
        let body = self.body(function, format)?;
        let (head, tail) = (self.literal(&format.head), self.literal(&format.tail));
        Ok(self.rule("", &format!("{head} {body} {tail}")))
    }

    /// Returns the header of the message of a call, in front of all markers.
    fn message_header(&self, function: &Function, format: &ToolFormat) -> String {
        match format.messages.and_then(|messages| messages.call) {
            Some((before, behind)) => self.literal(&format!("{before}{}{behind}", function.name)),
            None => String::new(),
        }
    }

    /// Adds a rule for a call without markers.
    pub fn body(&mut self, function: &Function, format: &ToolFormat) -> ApiResult<String> {
        let name = match &format.id {
            Some(id) => format!("{} {}", self.id_until(MAX_ID, id), self.literal(&function.name)),
            None => self.literal(&function.name),
        };
        let body = match &format.form {
            CallSyntax::Object { name, arguments, ids } => {
                let mut schema = object(function, name.as_deref(), arguments, ids);
                if self.is_loose && name.is_some() && schema["properties"].get("id").is_none() {
                    // Some models write the id last.
                    schema["properties"]["id"] = id_schema();
                }
                self.json(schema)
            }
            CallSyntax::Named { middle } => format!("{name} {} {}", self.gap(middle), self.json(function.schema())),
            CallSyntax::Harmony => {
                let head = format!(
                    "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>",
                    function.name
                );
                format!("{} {}", self.literal(&head), self.json(function.schema()))
            }
            CallSyntax::Tagged { begin, key, value, end } => {
                let mut pairs = Vec::new();
                let behind = self.behind_marker(key, end, format);
                for property in properties(function)? {
                    let value = format!("{} {}", self.gap(value), self.tagged(&property, end, &behind));
                    let pair = format!("{} {} {value}", self.literal(key), self.literal(&property.name));
                    pairs.push((self.rule("", &pair), property.is_required));
                }
                format!("{name} {} {}", self.gap(begin), self.listed(&pairs, ""))
            }
            CallSyntax::Bare { quote } => {
                let schema = function.schema();
                // Each function has its own definitions.
                self.defs.clear();
                format!("{name} {}", self.bare_object(&schema, &schema, quote, 0))
            }
            CallSyntax::Elements { begin, mark } => {
                let members = self.elements(function, mark)?;
                format!("{name} {} {members}", self.literal(begin))
            }
            CallSyntax::Python => {
                let mut items = Vec::new();
                for property in properties(function)? {
                    let value = self.python(property.schema);
                    items.push((
                        format!("{} \"=\" {value}", self.literal(&property.name)),
                        property.is_required,
                    ));
                }
                format!("{name} \"(\" {} \")\"", self.listed(&items, ", "))
            }
        };
        Ok(self.rule("", &body))
    }

    /// Returns a rule body for an optional Harmony message with reasoning; empty without reasoning. Further messages
    /// could not be followed by the message that an exhausted reasoning budget starts.
    pub(super) fn harmony_thought(&mut self, thinks: bool) -> String {
        if !thinks {
            return String::new();
        }
        let [channel, message, end, start] =
            ["<|channel|>", "<|message|>", "<|end|>", "<|start|>"].map(|mark| self.literal(mark));
        let text = self.text_until(&end);
        let body = format!("{channel} WS? \"analysis\" WS? {message} {text} {start} \"assistant\"");
        format!("{}?", self.rule("", &body))
    }

    /// Adds a rule for a Harmony call, starting at the function name.
    pub fn harmony_call(&mut self, function: &Function) -> String {
        let (name, arguments) = (self.literal(&function.name), self.json(function.schema()));
        let [channel, constrain, message] =
            ["<|channel|>", "<|constrain|>", "<|message|>"].map(|mark| self.literal(mark));
        let head =
            format!("(WS? {channel} \"commentary\")? (WS? {constrain} WS? \"json\" | WS \"json\")? WS? {message}");
        self.rule("", &format!("{name} {head} {arguments}"))
    }

    /// Returns a rule body for comma-separated items: required items first, or any order in loose rules.
    fn listed(&mut self, items: &[(String, bool)], comma: &str) -> String {
        if self.is_loose && items.len() <= MAX_UNORDERED {
            return self.unordered(items, comma);
        }
        if comma.is_empty() {
            let item = |(item, is_required): &(String, bool)| format!("{item}{}", if *is_required { "" } else { "?" });
            return items.iter().map(item).collect::<Vec<_>>().join(" ");
        }
        ordered(items, comma)
    }

    /// Adds rules for items in any order, each at most once. The rule parameter has one bit per item.
    fn unordered(&mut self, items: &[(String, bool)], comma: &str) -> String {
        if items.is_empty() {
            return String::new();
        }
        let mut items: Vec<_> = items.iter().collect();
        items.sort_by_key(|(_, is_required)| !is_required);
        let n_required = items.iter().filter(|(_, is_required)| *is_required).count();
        let (first, next) = (format!("r{}", self.n), format!("r{}", self.n + 1));
        self.n += 2;
        for (name, comma) in [(&first, ""), (&next, comma)] {
            let end = match n_required {
                0 => "\"\"".to_owned(),
                n => format!("\"\" %if is_ones([0:{n}])"),
            };
            let _ = write!(self.text, "{name}::_: {end}");
            let comma = if comma.is_empty() {
                String::new()
            } else {
                format!("{comma:?} ")
            };
            for (i, (item, _)) in items.iter().enumerate() {
                let _ = write!(self.text, "\n  | {comma}{item} {next}::set_bit({i}) %if bit_clear({i})");
            }
            self.text.push('\n');
        }
        format!("{first}::0x0")
    }

    /// Returns a rule body for an unquoted value and the marker after it. `behind` is the rule for text that makes this
    /// marker part of the value.
    fn tagged(&mut self, property: &Property, end: &str, behind: &str) -> String {
        let mark = self.literal(end);
        if let Some(texts) = texts(&property.schema) {
            let texts: Vec<String> = texts.iter().map(|text| self.literal(text)).collect();
            return format!("({}) {mark}", texts.join(" | "));
        }
        if property.schema["type"] != "string" {
            let value = self.json(property.schema.clone());
            return format!("{value} {mark}");
        }
        let text = self.text_until(&mark);
        if mark.contains("<[") || behind.is_empty() {
            return text;
        }
        format!("{text} ({behind} {text} | {mark})*")
    }

    /// Adds a rule for text after the marker of a value. The text contains no marker of an argument, of a value, or
    /// of the end of the call. Returns an empty string if the end of a call has no marker.
    fn behind_marker(&mut self, key: &str, end: &str, format: &ToolFormat) -> String {
        let marks = behind_arguments(format);
        if marks.is_empty() {
            return String::new();
        }
        // For each prefix of a marker, the next characters of all markers with this prefix. Whitespace is optional.
        let mut next: BTreeMap<String, BTreeSet<char>> = BTreeMap::new();
        for mark in marks.iter().map(String::as_str).chain([key, end]) {
            let mut begin = String::new();
            for c in mark.chars().filter(|c| !c.is_whitespace()) {
                next.entry(begin.clone()).or_default().insert(c);
                begin.push(c);
            }
        }
        let deviation = |(begin, next): (&String, &BTreeSet<char>)| {
            let begin: String = begin.chars().map(|c| escaped(&c.to_string()) + BLANKS).collect();
            let next: String = next.iter().map(|c| escaped(&c.to_string())).collect();
            format!("{begin}[^{next}\\s]")
        };
        let all: Vec<String> = next.iter().map(deviation).collect();
        self.rule("", &format!("/{BLANKS}({})/", all.join("|")))
    }

    /// Returns a rule body for arbitrary text up to a marker.
    pub(super) fn text_until(&mut self, mark: &str) -> String {
        if mark.starts_with('"') && !mark.contains("<[") {
            self.rule(&format!("[suffix={mark}]"), "/(?s:.*)/")
        } else {
            let text = self.rule("", "/(?s:.*)/");
            format!("{text} {mark}")
        }
    }

    /// Returns a rule body for a Python value, if loose; otherwise JSON.
    fn python(&mut self, schema: Json) -> String {
        let json = self.json(schema.clone());
        let quoted = |text: &&str| Json::from(format!("'{text}'")).to_string();
        let is_plain = |text: &&str| !text.contains(['\'', '\\']);
        let other = match (texts(&schema), schema["type"].as_str()) {
            (Some(texts), _) => texts
                .iter()
                .filter(|text| is_plain(text))
                .map(quoted)
                .collect::<Vec<_>>()
                .join(" | "),
            (None, Some("string")) => r"/'([^'\\\n]|\\['\\nt])*'/".to_owned(),
            (None, Some("boolean")) => "\"True\" | \"False\"".to_owned(),
            _ => String::new(),
        };
        if self.is_loose && !other.is_empty() {
            format!("({json} | {other})")
        } else {
            json
        }
    }

    /// Returns a rule body for a value with unquoted keys and specially quoted strings. `root` has the definitions.
    fn bare(&mut self, root: &Json, schema: &Json, quote: &str, depth: usize) -> String {
        let mark = self.literal(quote);
        if let Some(name) = schema["$ref"].as_str() {
            return self.bare_definition(root, name, quote);
        }
        if let Some(texts) = texts(schema) {
            let texts: Vec<String> = texts.iter().map(|text| self.literal(text)).collect();
            return format!("({mark} ({}) {mark})", texts.join(" | "));
        }
        if let Some(options) = schema["anyOf"].as_array()
            && depth < MAX_DEPTH
        {
            let options: Vec<String> = options
                .iter()
                .map(|option| self.bare(root, option, quote, depth + 1))
                .collect();
            return format!("({})", options.join(" | "));
        }
        match schema["type"].as_str() {
            Some("string") => format!("({mark} {})", self.text_until(&mark)),
            Some("array") if depth < MAX_DEPTH => {
                let item = self.bare(root, &schema["items"], quote, depth + 1);
                format!("(\"[\" ({item} (\",\" {item})*)? \"]\")")
            }
            Some("object") if depth < MAX_DEPTH => self.bare_object(root, schema, quote, depth + 1),
            Some("integer" | "number" | "boolean" | "null") => self.json(schema.clone()),
            _ => format!(
                "({mark} {} | /-?[0-9]+(\\.[0-9]+)?/ | \"true\" | \"false\" | \"null\")",
                self.text_until(&mark)
            ),
        }
    }

    /// Returns the rule of a definition, which may refer to itself.
    fn bare_definition(&mut self, root: &Json, target: &str, quote: &str) -> String {
        if let Some(known) = self.defs.get(target) {
            return known.clone();
        }
        let name = format!("r{}", self.n);
        self.n += 1;
        self.defs.insert(target.to_owned(), name.clone());
        let schema = root
            .pointer(target.trim_start_matches('#'))
            .cloned()
            .unwrap_or_default();
        let body = self.bare(root, &schema, quote, 0);
        let _ = writeln!(self.text, "{name}: {body}");
        name
    }

    fn bare_object(&mut self, root: &Json, schema: &Json, quote: &str, depth: usize) -> String {
        let mut items = Vec::new();
        for property in properties_of(schema).unwrap_or_default() {
            let value = self.bare(root, &property.schema, quote, depth);
            items.push((
                format!("{} {value}", self.literal(&format!("{}:", property.name))),
                property.is_required,
            ));
        }
        let body = format!("\"{{\" {} \"}}\"", self.listed(&items, ","));
        self.rule("", &body)
    }
}

/// Returns a rule body for comma-separated items, required items first.
fn ordered(items: &[(String, bool)], comma: &str) -> String {
    let mut items: Vec<_> = items.iter().collect();
    items.sort_by_key(|(_, is_required)| !is_required);
    let behind = |from: usize| {
        let rest = items[from..].iter();
        let rest = rest.map(|(item, is_required)| format!("({comma:?} {item}){}", if *is_required { "" } else { "?" }));
        rest.collect::<Vec<_>>().join(" ")
    };
    match items.first() {
        None => String::new(),
        Some((first, true)) => format!("{first} {}", behind(1)),
        Some(_) => {
            let begin = |i: usize| format!("{} {}", items[i].0, behind(i + 1));
            let all: Vec<String> = (0..items.len()).map(begin).collect();
            format!("({})?", all.join(" | "))
        }
    }
}

/// Returns the strings of a `const` or `enum` schema.
fn texts(schema: &Json) -> Option<Vec<&str>> {
    if let Some(text) = schema["const"].as_str() {
        return Some(vec![text]);
    }
    let list = schema["enum"].as_array()?;
    list.iter()
        .map(Json::as_str)
        .collect::<Option<Vec<_>>>()
        .filter(|list| !list.is_empty())
}

/// Returns the schema of a call object. Definitions used by the arguments move to the root.
fn object(function: &Function, name: Option<&str>, arguments: &str, ids: &[String]) -> Json {
    let mut schema = function.schema();
    let mut call = json!({});
    if let Some(found) = schema.as_object_mut().and_then(|schema| schema.remove("$defs")) {
        call["$defs"] = found;
    }
    let id = id_schema();
    let mut properties = Map::new();
    properties.extend(ids.iter().map(|key| (key.clone(), id.clone())));
    match name {
        Some(key) => {
            properties.insert(key.to_owned(), json!({ "const": function.name }));
            properties.insert(arguments.to_owned(), schema);
        }
        None => _ = properties.insert(function.name.clone(), schema),
    }
    call["type"] = "object".into();
    call["required"] = properties.keys().cloned().collect::<Vec<_>>().into();
    call["properties"] = properties.into();
    call["additionalProperties"] = false.into();
    call
}

fn id_schema() -> Json {
    json!({ "type": "string", "pattern": "^[A-Za-z0-9]{1,9}$" })
}

/// Escapes all characters of a text that are special in regular expressions.
fn escaped(text: &str) -> String {
    let one = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_string()
        } else {
            format!("\\x{{{:x}}}", u32::from(c))
        }
    };
    text.chars().map(one).collect()
}

/// An argument of a function.
struct Property {
    name: String,
    schema: Json,
    is_required: bool,
}

fn properties(function: &Function) -> ApiResult<Vec<Property>> {
    let refused = || {
        let what = format!(
            "the parameters of {:?} must list `properties`, because this model writes each argument separately",
            function.name
        );
        ApiError::field("tools", what)
    };
    properties_of(&function.schema()).ok_or_else(refused)
}

/// Returns the properties of an object schema, each with the definitions it may reference. `None` if the
/// schema is defined by combinators.
fn properties_of(schema: &Json) -> Option<Vec<Property>> {
    if ["$ref", "anyOf", "oneOf", "allOf"]
        .iter()
        .any(|key| schema.get(key).is_some())
    {
        return None;
    }
    let Some(listed) = schema.get("properties") else {
        return Some(Vec::new());
    };
    let is_required = |name: &String| {
        schema["required"]
            .as_array()
            .is_some_and(|all| all.iter().any(|n| n == name))
    };
    let property = |(name, property): (&String, &Json)| {
        // The schema `true` accepts any value.
        let mut property = if property.is_object() {
            property.clone()
        } else {
            json!({})
        };
        if let Some(found) = schema.get("$defs") {
            property["$defs"] = found.clone();
        }
        Property {
            name: name.clone(),
            schema: property,
            is_required: is_required(name),
        }
    };
    Some(listed.as_object()?.iter().map(property).collect())
}
