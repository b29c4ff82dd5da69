//! Grammars for voluntary tool calls, active from the marker of a call to its end. Other output is
//! unconstrained.

use engine::grammar::{Grammar, Trigger};
use engine::vocab::Vocab;
use serde_json::{Value as Json, json};

use super::definition::{Function, Tools};
use super::format::{CallSyntax, ToolFormat};
use super::grammar::{Rules, SPACE};
use super::markers::{first_part, last_part};

/// Starts of Harmony message headers that are calls, before the function name. The last entry occurs at the
/// start of the output.
const HARMONY: &[&str] = &[
    "<|channel|>commentary to=functions.",
    "<|channel|>analysis to=functions.",
    "<|start|>assistant to=functions.",
    "to=functions.",
];

impl Tools {
    /// Returns the grammar of a call and its trigger. `can_be_kept` reports whether a schema can be compiled;
    /// otherwise any JSON object is accepted. `None` if no grammar exists; calls are then unconstrained.
    pub fn lazy_grammar(
        &self,
        format: &ToolFormat,
        vocab: &Vocab,
        can_be_kept: &dyn Fn(&Grammar) -> bool,
    ) -> Option<(Grammar, Trigger)> {
        let functions = self.kept_functions(can_be_kept);
        let mut rules = Rules::loose(vocab);
        let calls = calls(&functions, format, &mut rules)?;
        let call_starts = call_starts(format);
        let names = functions.iter().map(|function| match &format.form {
            CallSyntax::Object { .. } => Json::from(function.name.as_str()).to_string(),
            _ => function.name.clone(),
        });
        let has_bare_start = call_starts.iter().any(CallStart::is_bare);
        let trigger = Trigger {
            names: if has_bare_start { names.collect() } else { Vec::new() },
            marks: call_starts
                .iter()
                .filter(|begin| !begin.is_bare())
                .map(|begin| begin.mark.clone())
                .collect(),
            ..Trigger::default()
        };
        let starts: Vec<String> = call_starts
            .iter()
            .map(|begin| begin.rule(&rules, format, self.parallel))
            .collect();
        let tail = rules.literal(&format.tail);
        let text = format!(
            "%llguidance {{}}\nstart: {}\ncall: ({}) {tail}\n{SPACE}{}",
            starts.join(" | "),
            calls.join(" | "),
            rules.text()
        );
        Some((Grammar::Gbnf(text), trigger))
    }

    /// Returns the functions with schemas that can be compiled. A function whose schema cannot be enforced accepts
    /// any object.
    pub(super) fn kept_functions(&self, can_be_kept: &dyn Fn(&Grammar) -> bool) -> Vec<Function> {
        let kept = |function: &Function| {
            let kept = function.enforceable().ok();
            let kept = kept.filter(|f| can_be_kept(&Grammar::JsonSchema(f.schema().to_string())));
            kept.unwrap_or_else(|| Function {
                name: function.name.clone(),
                parameters: json!({ "type": "object" }),
            })
        };
        self.functions().iter().map(kept).collect()
    }
}

/// Adds a rule for a call of each function.
pub(super) fn calls(functions: &[Function], format: &ToolFormat, rules: &mut Rules<'_>) -> Option<Vec<String>> {
    let mut calls = Vec::with_capacity(functions.len());
    for function in functions {
        let call = match format.form {
            CallSyntax::Harmony => rules.harmony_call(function),
            _ => rules.body(function, format).ok()?,
        };
        calls.push(call);
    }
    Some(calls)
}

/// Start of a call.
pub(super) struct CallStart {
    /// Marker that triggers the grammar; empty if only the position identifies a call.
    mark: String,
    /// Text of the template between the marker and the call.
    rest: String,
}

impl CallStart {
    fn new(mark: &str, rest: &str) -> CallStart {
        CallStart {
            mark: mark.to_owned(),
            rest: rest.to_owned(),
        }
    }

    fn is_bare(&self) -> bool {
        self.mark.is_empty()
    }

    /// Returns a rule body for this start, followed by a call or a list of calls.
    pub(super) fn rule(&self, rules: &Rules<'_>, format: &ToolFormat, parallel: bool) -> String {
        let (mark, rest) = (rules.literal(&self.mark), rules.literal(&self.rest));
        let begin = match format.form {
            CallSyntax::Harmony => format!("{mark} {rest}"),
            _ => format!("{mark} WS? {rest} WS?"),
        };
        let is_list = (self.rest.trim_end().ends_with('[') || self.mark.ends_with('[')) && format.close.contains(']');
        match (is_list, parallel) {
            (false, _) => format!("{begin} call"),
            (true, false) => format!("{begin} call WS? {}", rules.literal(format.close.trim_start())),
            (true, true) => format!(
                "{begin} call (WS? \",\" WS? call)* WS? {}",
                rules.literal(format.close.trim_start())
            ),
        }
    }
}

/// Words that identify the marker of a tool call.
const CALL_WORDS: &[&str] = &["tool", "call", "func", "action", "invoke", "["];

/// Returns the length of the marker up to the first tag that identifies a call. Earlier tags also occur in
/// other contexts.
fn trigger_len(mark: &str) -> usize {
    let mut n = 0;
    while n < mark.len() {
        let rest = mark[n..].trim_start();
        n = mark.len() - rest.len() + first_part(rest).len().max(1);
        let prefix = mark.get(..n).unwrap_or(mark).to_ascii_lowercase();
        if CALL_WORDS.iter().any(|word| prefix.contains(word)) {
            return prefix.len();
        }
    }
    mark.len()
}

/// Returns all possible starts of a call.
pub(super) fn call_starts(format: &ToolFormat) -> Vec<CallStart> {
    if format.form == CallSyntax::Harmony {
        let (first, marks) = (HARMONY.last(), &HARMONY[..HARMONY.len() - 1]);
        let bare = first.map(|rest| CallStart::new("", rest));
        return marks.iter().map(|mark| CallStart::new(mark, "")).chain(bare).collect();
    }
    let whole = format!("{}{}", format.open, format.head);
    let divided = |text: &str| {
        let n = trigger_len(text.trim());
        CallStart::new(&text.trim()[..n], text.trim()[n..].trim())
    };
    let mut all = vec![divided(&whole)];
    if first_part(&whole).trim_matches('[').is_empty() {
        all[0] = CallStart::new("", whole.trim());
        if !whole.trim().is_empty() && matches!(format.form, CallSyntax::Object { .. }) {
            // The brackets of a list with one element are often omitted.
            all.push(CallStart::new("", ""));
        }
    } else if !format.open.trim().is_empty() && !format.head.trim().is_empty() {
        all.push(divided(&format.head));
    }
    all.extend(last_part(&format.head).map(|last| CallStart::new(last, "")));
    all.extend(format.lead.as_deref().map(|lead| CallStart::new(lead, "")));
    all
}

#[cfg(test)]
pub mod tests {
    use std::borrow::Cow;
    use std::sync::Arc;

    use engine::grammar::{Compiler, Constraint};
    use engine::vocab::{Special, Token, VocabSource};

    use super::super::tests::{families, filled, format, joined, template};
    use super::super::{ToolCallParser, ToolChoice};
    use super::*;
    use crate::chat::{Ending, OutputEvent};

    const END: Token = 2;

    /// Returns a vocabulary of bytes and the given control tokens.
    fn vocab(controls: &[String]) -> Vocab {
        let bytes: Vec<String> = (0..=255).map(|b| format!("<0x{b:02X}>")).collect();
        let mut tokens: Vec<(&str, i32)> = vec![("<unk>", 2), ("<s>", 3), ("</s>", 3)];
        tokens.extend(bytes.iter().map(|text| (text.as_str(), 6)));
        tokens.extend(controls.iter().map(|text| (text.as_str(), 3)));
        let source = VocabSource {
            model: "llama",
            tokens: Some(Cow::Owned(tokens.iter().map(|(text, _)| text).collect())),
            scores: Some(tokens.iter().map(|_| 0.0).collect()),
            token_types: Some(tokens.iter().map(|token| token.1).collect()),
            special_ids: vec![("eos", Special::Eos, i64::from(END))],
            ..VocabSource::default()
        };
        Vocab::from_source(&source).unwrap()
    }

    /// Tokenizes a text into bytes and control tokens.
    fn tokens_of(mut text: &str, controls: &[String]) -> Vec<Token> {
        let mut tokens = Vec::new();
        while !text.is_empty() {
            match controls.iter().position(|name| text.starts_with(name.as_str())) {
                Some(i) => {
                    tokens.push(3 + 256 + i as Token);
                    text = &text[controls[i].len()..];
                }
                None => {
                    let n = text.chars().next().map_or(1, char::len_utf8);
                    tokens.extend(text.as_bytes()[..n].iter().map(|&b| 3 + Token::from(b)));
                    text = &text[n..];
                }
            }
        }
        tokens
    }

    /// Checks that the grammar accepts a rendered call from its marker to its end. Returns the rejected
    /// position otherwise.
    pub fn keeps(tools: &Tools, format: &ToolFormat, text: &str) -> Result<(), String> {
        let controls = tags(text);
        let vocab = vocab(&controls);
        let mut constraint = constraint(tools, format, &vocab);
        let (mut n_kept, mut read) = (0, Vec::new());
        for token in tokens_of(text, &controls) {
            if !constraint.is_free() {
                n_kept += 1;
                if !constraint.allowed().is_ok_and(|allowed| allowed.has(token)) {
                    return Err(format!("refused behind {:?}", String::from_utf8_lossy(&read)));
                }
            }
            read.extend_from_slice(vocab.token_to_piece(token, true));
            constraint.accept(token).map_err(|e| e.to_string())?;
        }
        match (n_kept, constraint.is_free()) {
            (0, _) => Err("the grammar was not triggered".to_owned()),
            (_, false) => Err("the call does not end".to_owned()),
            _ => Ok(()),
        }
    }

    /// Returns the tags of a text that look like control tokens.
    fn tags(text: &str) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        for (open, close) in [("<|", ">"), ("[T", "]"), ("[A", "]"), ("[C", "]"), ("]<]", "[>[")] {
            for (at, _) in text.match_indices(open) {
                let end = text[at..].find(close).map_or(at, |n| at + n + close.len());
                all.push(text[at..end].to_owned());
            }
        }
        all.retain(|tag| tag.len() > 3 && !tag.contains('{') && !tag.contains(' '));
        all.sort();
        all.dedup();
        all
    }

    fn tools() -> Tools {
        let tool = |name: &str| {
            json!({"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {
                "o": {"type": "integer"}, "t": {"type": "string"}, "day": {"enum": ["today", "never"]}, "l": {"type": "array", "items": {"type": "boolean"}}},
                "required": ["t", "day"], "additionalProperties": false}}})
        };
        Tools {
            list: vec![tool("f"), tool("g")],
            choice: ToolChoice::Auto,
            parallel: true,
        }
    }

    fn constraint(tools: &Tools, format: &ToolFormat, vocab: &Vocab) -> Constraint {
        let compiler = Compiler::new(vocab, vocab.n_tokens() as usize).unwrap();
        let compile = |grammar: &Grammar| compiler.compile(grammar, vocab);
        let (grammar, trigger) = tools
            .lazy_grammar(format, vocab, &|schema| compile(schema).is_ok())
            .unwrap();
        compile(&grammar)
            .unwrap_or_else(|e| panic!("{e}: {grammar:?}"))
            .lazily(trigger)
            .unwrap()
    }

    /// Completes a call with random allowed bytes, and after some steps with closing tokens. `None` if no
    /// call has started.
    fn completed(constraint: &mut Constraint, ends: &[Vec<Token>], vocab: &Vocab, seed: u64) -> Option<String> {
        if constraint.is_free() {
            return None;
        }
        let (mut text, mut state) = (Vec::new(), seed);
        for n in 0.. {
            assert!(n < 2000, "no end: {}", String::from_utf8_lossy(&text));
            if constraint.is_free() {
                break;
            }
            let allowed = constraint.allowed().unwrap();
            assert!(
                !allowed.has(END),
                "ends inside a call: {}",
                String::from_utf8_lossy(&text)
            );
            let mut all: Vec<Token> = (0..vocab.n_tokens()).filter(|&token| allowed.has(token)).collect();
            // Prefer bytes, because the name of a control token inside a string would end the string.
            if all.iter().any(|&token| token < 3 + 256) {
                all.retain(|&token| token < 3 + 256);
            }
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let fits = |end: &&Vec<Token>| {
                let mut constraint = constraint.clone();
                end.iter().all(|&token| {
                    constraint.is_free() || constraint.allowed().unwrap().has(token) && constraint.accept(token).is_ok()
                })
            };
            let fitting: Vec<_> = ends.iter().filter(fits).collect();
            let picked = if fitting.is_empty() || n < 20 {
                vec![all[(state >> 33) as usize % all.len()]]
            } else {
                // Alternate, because a closing token of one element may be text inside another.
                fitting[n % fitting.len()].clone()
            };
            for token in picked.into_iter() {
                text.extend_from_slice(vocab.token_to_piece(token, true));
                constraint.accept(token).unwrap();
            }
        }
        Some(String::from_utf8(text).unwrap())
    }

    /// Checks the arguments of all calls.
    #[track_caller]
    fn check_calls(events: &[OutputEvent], n: usize, what: &str) {
        let mut all: Vec<String> = Vec::new();
        for events in events {
            match events {
                OutputEvent::Call(name) => {
                    assert!(["f", "g"].contains(&name.as_str()));
                    all.push(String::new());
                }
                OutputEvent::Arguments(text) => all.last_mut().unwrap().push_str(text),
                _ => {}
            }
        }
        assert!(all.len() >= n, "{what}: {events:?}");
        for arguments in all {
            let read: Json = serde_json::from_str(&arguments).unwrap_or_else(|e| panic!("{what}: {e}: {arguments}"));
            let is_right =
                read["t"].is_string() && ["today", "never"].contains(&read["day"].as_str().unwrap_or_default());
            let is_right = is_right && read.get("o").is_none_or(Json::is_number);
            assert!(
                is_right && read.get("l").is_none_or(Json::is_array),
                "{what}: {arguments}"
            );
        }
    }

    /// Random output that the grammar allows is always a valid call, whether markers are plain text or
    /// control tokens.
    #[test]
    fn started_calls_match_schema_in_every_family() {
        for (family, written, events) in families() {
            let format = format(&template(&written)).unwrap();
            let events = filled(events);
            for controls in [Vec::new(), tags(&events)] {
                let vocab = vocab(&controls);
                let initial = constraint(&tools(), &format, &vocab);
                let ends = match &format.form {
                    // The marker of a value does not end a text unless another marker follows.
                    CallSyntax::Tagged { end, key, .. } => {
                        vec![format!("{end}{}", format.tail), format!("{end}{key}"), end.clone()]
                    }
                    CallSyntax::Bare { quote } => vec![quote.clone()],
                    CallSyntax::Elements { mark, .. } => {
                        let end = |name: &str| format!("{mark}</{name}>");
                        ["t", "l", "item", "o"].map(end).into()
                    }
                    _ => Vec::new(),
                };
                let more = ["\"", "'", "}", "]", ")", &format.tail, "\n", "e"].map(str::to_owned);
                let ends = ends.into_iter().chain(more).filter(|end| !end.is_empty());
                let ends: Vec<Vec<Token>> = ends.map(|end| tokens_of(&end, &controls)).collect();
                for seed in 0..8 {
                    let mut constraint = initial.clone();
                    let mut text = Vec::new();
                    let lead = if family == "Llama 3" {
                        ""
                    } else {
                        "Let me see {a} <b>.\n"
                    };
                    for token in tokens_of(&format!("{lead}{events}"), &controls) {
                        if !constraint.is_free() {
                            break;
                        }
                        constraint.accept(token).unwrap();
                        text.extend_from_slice(vocab.token_to_piece(token, true));
                    }
                    let mut text = String::from_utf8(text).unwrap();
                    let rest = completed(&mut constraint, &ends, &vocab, seed);
                    text += &rest.unwrap_or_else(|| panic!("{family}: {text:?} did not trigger a call: {format:?}"));
                    let mut split = ToolCallParser::new(Arc::new(format.clone()), tools().functions(), true);
                    let mut all = Vec::new();
                    split.push(&text, &mut all);
                    split.finish(Ending::Complete, &mut all);
                    check_calls(&joined(all), 1, &format!("{family}: {text:?}"));
                }
            }
        }
    }

    /// Tests Harmony calls with the function before or after the channel, and calls without markers.
    #[test]
    fn harmony_and_unmarked_calls_match_schema() {
        let controls: Vec<String> = super::super::format::HARMONY_MARKS
            .iter()
            .map(|mark| (*mark).to_owned())
            .collect();
        let vocab = vocab(&controls);
        let harmony = ToolFormat::new(CallSyntax::Harmony);
        let initial = constraint(&tools(), &harmony, &vocab);
        let ends: Vec<Vec<Token>> = ["\"", "}", "]", "e"].map(|end| tokens_of(end, &controls)).into();
        let thought = "<|channel|>analysis<|message|>to=functions.f<|end|><|start|>assistant";
        for begin in [
            format!("{thought}<|channel|>commentary to=functions."),
            format!("{thought} to=functions."),
            " to=functions.f".to_owned(),
            "<|channel|>commentary to=functions.g".to_owned(),
        ] {
            for seed in 0..8 {
                let mut constraint = initial.clone();
                tokens_of(&begin, &controls)
                    .into_iter()
                    .for_each(|token| constraint.accept(token).unwrap());
                if constraint.is_free() {
                    // Calls identified only by their position are triggered by the token after the name.
                    constraint.accept(tokens_of("<|channel|>", &controls)[0]).unwrap();
                    let rest = completed(&mut constraint, &ends, &vocab, seed).expect("a call");
                    check_harmony(&format!("{begin}<|channel|>{rest}"));
                } else {
                    let rest = completed(&mut constraint, &ends, &vocab, seed).expect("a call");
                    check_harmony(&format!("{begin}{rest}"));
                }
            }
        }
        let mut free = initial.clone();
        let text = "<|channel|>final<|message|>It is to=functions.f, {\"a\": <|x";
        tokens_of(text, &controls)
            .into_iter()
            .for_each(|token| free.accept(token).unwrap());
        assert!(free.is_free());
        let plain = super::super::generic_format();
        let initial = constraint(&tools(), &plain, &vocab);
        for (text, is_call) in [
            ("{\"name\": \"f\"", false),
            ("{\"name\": \"f\",", true),
            ("\n{ \"name\":\"g\" ,", true),
            ("{\"name\": \"h\",", false),
            ("x {\"name\": \"f\",", false),
        ] {
            let mut constraint = initial.clone();
            tokens_of(text, &controls)
                .into_iter()
                .for_each(|token| constraint.accept(token).unwrap());
            assert_eq!(!constraint.is_free(), is_call, "{text}");
        }
    }

    #[track_caller]
    fn check_harmony(text: &str) {
        let mut split = super::super::Harmony::new(tools().functions(), true, "<|start|>assistant");
        let mut events = Vec::new();
        split.push(text, &mut events);
        split.finish(Ending::Complete, &mut events);
        check_calls(&joined(events), 1, text);
    }

    /// If a schema cannot be compiled, JSON arguments must still be an object.
    #[test]
    fn invalid_schema_still_requires_object() {
        let vocab = vocab(&[]);
        let mut tools = tools();
        tools.list[0]["function"]["parameters"] = json!({"type": "no such type"});
        let families = families();
        let hermes = format(&template(&families[0].1)).unwrap();
        let mut constraint = constraint(&tools, &hermes, &vocab);
        let begin = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"anything\": [1";
        for token in tokens_of(begin, &[]) {
            assert!(constraint.is_free() || constraint.allowed().unwrap().has(token));
            constraint.accept(token).unwrap();
        }
        assert!(!constraint.is_free() && !constraint.allowed().unwrap().has(tokens_of("}", &[])[0]));
        tools.list[0]["function"]["parameters"] = json!({"anyOf": [{"type": "object"}]});
        let (_, written, _) = families.iter().find(|(family, ..)| *family == "GLM").unwrap();
        let glm = format(&template(written)).unwrap();
        assert!(tools.lazy_grammar(&glm, &vocab, &|_| true).is_none());
    }
}
