//! Compares expressions and statements of chat templates with recordings of Jinja2, made by
//! `tests/tools/record_jinja.py`.

use engine::chat::{ChatTemplate, Message};
use serde::Deserialize;
use serde_json::{Map, Value as Json};

#[derive(Deserialize)]
struct Recording {
    values: Vec<String>,
    /// Output for each value, by test or filter.
    grid: Map<String, Json>,
    cases: Vec<(String, Option<String>)>,
}

fn rendered(source: &str) -> Result<String, String> {
    // A template must print the user's message. For the recorded message, the first line prints nothing.
    let shown = "{% for m in messages %}{{ m.content if m.content != 'Hi' }}{% endfor %}";
    let template = ChatTemplate::new(&format!("{shown}\n{source}"), "<s>", "</s>").map_err(|e| e.to_string())?;
    let rendered = template.render(&[Message::user("Hi")], true, &Map::new());
    rendered.map_err(|e| e.to_string())
}

#[test]
fn expressions_and_statements_match_jinja2() {
    let recording: Recording = serde_json::from_str(include_str!("data/jinja.json")).expect("a recording");
    let mut all = recording.cases;
    for (name, row) in &recording.grid {
        let row = row.as_array().expect("a row of outputs");
        assert_eq!(row.len(), recording.values.len(), "{name}");
        for (value, output) in recording.values.iter().zip(row) {
            let space = if name.starts_with('|') { "" } else { " " };
            let source = format!("{{{{ ({value}){space}{name} }}}}");
            all.push((source, output.as_str().map(str::to_owned)));
        }
    }
    let recorded: Vec<_> = all
        .iter()
        .filter_map(|(source, output)| Some((source, output.as_ref()?)))
        .collect();
    assert!(recorded.len() > 3500, "{} cases", recorded.len());
    let wrong = recorded
        .iter()
        .filter(|(source, output)| rendered(source).as_ref() != Ok(*output));
    let wrong: Vec<String> = wrong
        .map(|(source, output)| format!("{source:?}: expected {output:?}, found {:?}", rendered(source)))
        .collect();
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
}
