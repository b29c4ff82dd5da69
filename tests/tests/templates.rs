//! Compares the prompts of published chat templates with the prompts of Jinja2, which `tools/render_templates.py`
//! renders.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use engine::chat::{ChatTemplate, Message};
use serde_json::{Map, Value as Json};

/// Minimum number of prompts, so that a directory with few templates cannot pass.
const N_PROMPTS: usize = 1000;

/// Templates that fail in Jinja2 for some conversations, with the reason why the engine renders them.
const LENIENT: &[(&str, &str)] = &[
    (
        "Kimi-K2",
        "the template concatenates the arguments of calls, which the engine passes as text",
    ),
    (
        "meetkai-functionary-medium-v3.2",
        "the template concatenates the arguments of calls",
    ),
    (
        "google-gemma-2",
        "the template refuses system messages, which the engine adds to the first user message",
    ),
    (
        "llama-cpp-deepseek-r1",
        "the template passes a generator to tojson, which is a list in the engine",
    ),
];

/// Returns the time of the script's clock.
fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_750_000_000)
}

/// Runs the script.
fn recorded(directory: &Path) -> Json {
    let script = tests::root().join("tests/tools/render_templates.py");
    let python = std::env::var_os("LLAMA_PYTHON").unwrap_or_else(|| "python3".into());
    let mut command = Command::new(python);
    let output = command.arg(script).arg(directory).output();
    let output = output.expect("this test needs `python3` in PATH, or another Python in LLAMA_PYTHON");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn message(json: &Json) -> Message {
    let mut fields = json.as_object().expect("a message").clone();
    let mut text = |name: &str| match fields.remove(name) {
        Some(Json::String(text)) => text,
        other => panic!("{name}: {other:?}"),
    };
    let (role, content) = (text("role"), text("content"));
    Message { role, content, fields }
}

/// Renders a conversation; the error is the engine's message.
fn rendered(template: &ChatTemplate, conversation: &Json) -> Result<String, String> {
    let messages = conversation["messages"].as_array().expect("messages");
    let messages: Vec<Message> = messages.iter().map(message).collect();
    let mut variables: Map<String, Json> = conversation["variables"].as_object().expect("variables").clone();
    variables.insert("tools".to_owned(), conversation["tools"].clone());
    template.render(&messages, true, &variables).map_err(|e| e.to_string())
}

/// Returns the first difference of two texts.
fn difference(found: &str, wanted: &str) -> String {
    let n = found.bytes().zip(wanted.bytes()).take_while(|(a, b)| a == b).count();
    let behind = |text: &str| text[text.floor_char_boundary(n)..].chars().take(60).collect::<String>();
    format!("byte {n}: {:?} instead of {:?}", behind(found), behind(wanted))
}

#[test]
#[ignore = "needs published chat templates (*.jinja) in the directory LLAMA_TEMPLATES, and the Python package jinja2"]
fn published_templates_render_as_in_jinja2() {
    let directory = PathBuf::from(std::env::var_os("LLAMA_TEMPLATES").expect("LLAMA_TEMPLATES is a directory"));
    let recorded = recorded(&directory);
    let (bos, eos) = (recorded["bos"].as_str(), recorded["eos"].as_str());
    let (bos, eos) = bos.zip(eos).expect("texts of tokens");
    let (mut counts, mut failures) = (BTreeMap::<&str, usize>::new(), Vec::new());
    for (file, prompts) in recorded["prompts"].as_object().expect("prompts by template") {
        let source = std::fs::read_to_string(directory.join(file)).expect("a template");
        let template = ChatTemplate::with_clock(&source, bos, eos, now).unwrap_or_else(|e| panic!("{file}: {e}"));
        let reason = LENIENT.iter().find(|(name, _)| file.starts_with(name));
        for (name, wanted) in prompts.as_object().expect("prompts by conversation") {
            let found = rendered(&template, &recorded["conversations"][name]);
            let (outcome, why) = match (wanted.as_str(), found) {
                (Some(wanted), Ok(found)) if found == wanted => ("equal", None),
                (Some(wanted), Ok(found)) => ("different", Some(difference(&found, wanted))),
                (Some(_), Err(e)) => ("rendered by Jinja2 only", Some(e)),
                (None, Ok(_)) => match reason {
                    Some(_) => ("lenient", None),
                    None => ("rendered here only", Some("no reason is recorded".to_owned())),
                },
                (None, Err(_)) => ("refused by both", None),
            };
            *counts.entry(outcome).or_default() += 1;
            failures.extend(why.map(|why| format!("{file}, {name}: {outcome}: {why}")));
        }
    }
    println!("{counts:?}");
    assert!(counts.values().sum::<usize>() >= N_PROMPTS, "{counts:?}");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
