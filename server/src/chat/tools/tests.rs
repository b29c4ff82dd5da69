//! Tool-call formats of common model families, each written by a short template: detection, parsing, and grammars.

use std::sync::Arc;

use engine::chat::ChatTemplate;
use serde_json::{Value as Json, json};

use super::*;
use crate::chat::{Ending, OutputEvent};

/// Functions of all tests: `f` and `g`, with an argument of each type.
pub fn functions() -> Arc<[Function]> {
    let parameters = json!({"type": "object", "properties": {"a": {"type": "integer"}, "t": {"type": "string"}, "l": {"type": "array"}}});
    ["f", "g"]
        .into_iter()
        .map(|name| Function {
            name: name.to_owned(),
            parameters: parameters.clone(),
        })
        .collect()
}

/// Merges adjacent events of one kind.
pub fn joined(events: Vec<OutputEvent>) -> Vec<OutputEvent> {
    let mut all: Vec<OutputEvent> = Vec::new();
    for events in events {
        match (all.last_mut(), events) {
            (Some(OutputEvent::Text(before)), OutputEvent::Text(text)) => before.push_str(&text),
            (Some(OutputEvent::Reasoning(before)), OutputEvent::Reasoning(text)) => before.push_str(&text),
            (Some(OutputEvent::Arguments(before)), OutputEvent::Arguments(text)) => before.push_str(&text),
            (_, events) => all.push(events),
        }
    }
    all
}

/// Returns a template whose assistant messages are `<|assistant|>`, content, calls as written by `calls`, and
/// `<|end|>`.
pub fn template(calls: &str) -> String {
    format!(
        "{{% if tools %}}{{{{ tools | tojson }}}}{{% endif %}}{{% for m in messages %}}<|{{{{ m.role }}}}|>{{{{ m.content }}}}\
         {{% if m.tool_calls %}}{calls}{{% endif %}}<|end|>{{% endfor %}}{{% if add_generation_prompt %}}<|assistant|>{{% endif %}}"
    )
}

pub fn format(source: &str) -> Option<ToolFormat> {
    ToolFormat::of(&ChatTemplate::new(source, "", "<|end|>").unwrap(), source)
}

const EACH: &str = "{% for c in m.tool_calls %}";
const ITEMS: &str = "{% for k, v in c.function.arguments.items() %}";
const JSON: &str = "{{ c.function.arguments | tojson }}";
const VALUE: &str = "{{ v if v is string else v | tojson }}";

const END: &str = "{% endfor %}";
const MARK: &str = "]<]m[>[";
const NAME: &str = "{{ c.function.name }}";

/// Returns model families: name, template of calls, and output that calls `f` with a string, a number, and a list, then
/// `g` without arguments.
pub fn families() -> Vec<(&'static str, String, &'static str)> {
    let mut all = vec![
        (
            "Hermes, Qwen 2.5 and 3, Granite 4",
            format!("{EACH}\n<tool_call>\n{{\"name\": \"{NAME}\", \"arguments\": {JSON}}}\n</tool_call>{END}"),
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {ARGS}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>",
        ),
        (
            "Llama 3",
            format!("{EACH}{{\"name\": \"{NAME}\", \"parameters\": {JSON}}}{END}"),
            "{\"name\": \"f\", \"parameters\": {ARGS}}; {\"name\": \"g\", \"parameters\": {}}",
        ),
        (
            "Mistral before 2025",
            format!(
                "[TOOL_CALLS][{EACH}{{\"name\": \"{NAME}\", \"arguments\": {JSON}, \"id\": \"{{{{ c.id }}}}\"}}{{% if not loop.last %}}, {{% endif %}}{END}]"
            ),
            "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {ARGS}, \"id\": \"abcdefghi\"}, {\"name\": \"g\", \"arguments\": {}}]",
        ),
        (
            "Mistral",
            format!("{EACH}[TOOL_CALLS]{NAME}[CALL_ID]{{{{ c.id }}}}[ARGS]{JSON}{END}"),
            "[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{ARGS}[TOOL_CALLS]g[CALL_ID]x[ARGS]{}",
        ),
        (
            "DeepSeek R1",
            format!(
                "<|calls▁begin|>{EACH}<|call▁begin|>function<|sep|>{NAME}\n```json\n{JSON}\n```<|call▁end|>{{% if not loop.last %}}\n{{% endif %}}{END}<|calls▁end|>"
            ),
            "<|calls▁begin|><|call▁begin|>function<|sep|>f\n```json\n{ARGS}\n```<|call▁end|>\n<|call▁begin|>function<|sep|>g\n```json\n{}\n```<|call▁end|><|calls▁end|>",
        ),
        (
            "Kimi K2",
            format!(
                "<|calls_begin|>{EACH}<|call_begin|>functions.{NAME}:{{{{ loop.index0 }}}}<|argument_begin|>{JSON}<|call_end|>{END}<|calls_end|>"
            ),
            "<|calls_begin|><|call_begin|>functions.f:0<|argument_begin|>{ARGS}<|call_end|><|call_begin|>functions.g:1<|argument_begin|>{}<|call_end|><|calls_end|>",
        ),
        (
            "Command R",
            format!(
                "<|START_ACTION|>[\n{EACH}    {{\"tool_call_id\": \"{{{{ loop.index0 }}}}\", \"tool_name\": \"{NAME}\", \"parameters\": {JSON}}}{{% if not loop.last %}},\n{{% endif %}}{END}\n]<|END_ACTION|>"
            ),
            "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": {ARGS}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"g\", \"parameters\": {}}\n]<|END_ACTION|>",
        ),
        (
            "Gemma 4",
            format!(
                "{EACH}<|tool_call>call:{NAME}{{{{ '{{' }}}}{ITEMS}{{{{ k }}}}:{{% if v is string %}}<|\"|>{{{{ v }}}}<|\"|>{{% else %}}{{{{ v | tojson }}}}{{% endif %}}{{% if not loop.last %}},{{% endif %}}{END}{{{{ '}}' }}}}<tool_call|>{END}"
            ),
            "<|tool_call>call:f{t:<|\"|>TEXT<|\"|>,a:7,l:[1,<|\"|>x<|\"|>]}<tool_call|><|tool_call>call:g{}<tool_call|>",
        ),
        (
            "LFM 2.5",
            format!(
                "<|tool_call_start|>[{EACH}{NAME}({ITEMS}{{{{ k }}}}={{% if v is string %}}'{{{{ v }}}}'{{% else %}}{{{{ v }}}}{{% endif %}}{{% if not loop.last %}}, {{% endif %}}{END}){{% if not loop.last %}}, {{% endif %}}{END}]<|tool_call_end|>"
            ),
            "<|tool_call_start|>[f(t='PYTHON', a=7, l=[1, 'x']), g()]<|tool_call_end|>",
        ),
        (
            "Apertus",
            format!(
                "<|tools_prefix|>[{EACH}{{\"{NAME}\": {JSON}}}{{% if not loop.last %}}, {{% endif %}}{END}]<|tools_suffix|>"
            ),
            "<|tools_prefix|>[{\"f\": {ARGS}}, {\"g\": {}}]<|tools_suffix|>",
        ),
    ];
    all.extend(other_families().into_iter().chain(tagged_families()));
    all
}

/// Returns model families with an id in front of the name, and with arguments as elements.
fn other_families() -> Vec<(&'static str, String, &'static str)> {
    vec![
        (
            "Solar Open, without messages",
            format!(
                "<|tool_calls|>{EACH}<|tool_call:begin|>{{{{ c.id }}}}<|tool_call:name|>{NAME}<|tool_call:args|>{JSON}<|tool_call:end|>{END}<|calls|>"
            ),
            "<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>f<|tool_call:args|>{ARGS}<|tool_call:end|><|tool_call:begin|>x<|tool_call:name|>g<|tool_call:args|>{}<|tool_call:end|><|calls|>",
        ),
        (
            "MiniMax M3",
            format!(
                "{MARK}<tool_call>\n{EACH}{MARK}<invoke name=\"{NAME}\">{ITEMS}{MARK}<{{{{ k }}}}>{{% if v is iterable and v is not string %}}{{% for i in v %}}{MARK}<item>{{{{ i }}}}{MARK}</item>{END}{{% else %}}{{{{ v }}}}{{% endif %}}{MARK}</{{{{ k }}}}>{END}{MARK}</invoke>\n{END}{MARK}</tool_call>"
            ),
            "]<]m[>[<tool_call>\n]<]m[>[<invoke name=\"f\">]<]m[>[<t>TEXT]<]m[>[</t>]<]m[>[<a>7]<]m[>[</a>]<]m[>[<l>]<]m[>[<item>1]<]m[>[</item>]<]m[>[<item>x]<]m[>[</item>]<]m[>[</l>]<]m[>[</invoke>\n]<]m[>[<invoke name=\"g\">]<]m[>[</invoke>\n]<]m[>[</tool_call>",
        ),
    ]
}

/// Returns model families that write arguments one by one.
fn tagged_families() -> Vec<(&'static str, String, &'static str)> {
    vec![
        (
            "Qwen 3 Coder, Nemotron",
            format!(
                "{EACH}\n<tool_call>\n<function={NAME}>\n{ITEMS}<parameter={{{{ k }}}}>\n{VALUE}\n</parameter>\n{END}</function>\n</tool_call>{END}"
            ),
            "<tool_call>\n<function=f>\n<parameter=t>\nTEXT\n</parameter>\n<parameter=a>\n7\n</parameter>\n<parameter=l>\n[1, \"x\"]\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>",
        ),
        (
            "GLM",
            format!(
                "{EACH}\n<tool_call>{NAME}\n{ITEMS}<arg_key>{{{{ k }}}}</arg_key>\n<arg_value>{VALUE}</arg_value>\n{END}</tool_call>{END}"
            ),
            "\n<tool_call>f\n<arg_key>t</arg_key>\n<arg_value>TEXT</arg_value>\n<arg_key>a</arg_key>\n<arg_value>7</arg_value>\n<arg_key>l</arg_key>\n<arg_value>[1, \"x\"]</arg_value>\n</tool_call>\n<tool_call>g\n</tool_call>",
        ),
        (
            "MiniMax",
            format!(
                "\n<mm:tool_call>\n{EACH}<invoke name=\"{NAME}\">\n{ITEMS}<parameter name=\"{{{{ k }}}}\">{VALUE}</parameter>\n{END}</invoke>\n{END}</mm:tool_call>"
            ),
            "<mm:tool_call>\n<invoke name=\"f\">\n<parameter name=\"t\">TEXT</parameter>\n<parameter name=\"a\">7</parameter><parameter name=\"l\">[1, \"x\"]</parameter>\n</invoke>\n<invoke name=\"g\">\n</invoke>\n</mm:tool_call>",
        ),
        (
            "DeepSeek V3.2",
            format!(
                "\n\n<|DSML|calls>\n{EACH}<|DSML|invoke name=\"{NAME}\">\n{ITEMS}<|DSML|parameter name=\"{{{{ k }}}}\" string=\"{{{{ 'true' if v is string else 'false' }}}}\">{VALUE}</|DSML|parameter>\n{END}</|DSML|invoke>\n{END}</|DSML|calls>"
            ),
            "<|DSML|calls>\n<|DSML|invoke name=\"f\">\n<|DSML|parameter name=\"t\" string=\"true\">TEXT</|DSML|parameter>\n<|DSML|parameter name=\"a\" string=\"false\">7</|DSML|parameter>\n<|DSML|parameter name=\"l\" string=\"false\">[1, \"x\"]</|DSML|parameter>\n</|DSML|invoke>\n<|DSML|invoke name=\"g\">\n</|DSML|invoke>\n</|DSML|calls>",
        ),
    ]
}

/// A string with all characters that could be mistaken for syntax.
const TEXT: &str = "a \"<b>\"\n {c}, </d> é";

pub fn filled(events: &str) -> String {
    let arguments = json!({"t": TEXT, "a": 7, "l": [1, "x"]}).to_string();
    let python = TEXT.replace('\n', "\\n");
    events
        .replace("{ARGS}", &arguments)
        .replace("TEXT", TEXT)
        .replace("PYTHON", &python)
}

/// Parses output; checks that splitting the input does not change the result.
#[track_caller]
fn split(source: &str, text: &str, parallel: bool) -> Vec<OutputEvent> {
    let format = Arc::new(format(source).unwrap_or_else(|| panic!("no format detected: {source}")));
    let run = |pieces: &[&str]| {
        let mut split = ToolCallParser::new(format.clone(), functions(), parallel);
        let mut events = Vec::new();
        pieces.iter().for_each(|piece| split.push(piece, &mut events));
        split.finish(Ending::Complete, &mut events);
        joined(events)
    };
    let characters: Vec<&str> = text.split("").collect();
    let whole = run(&[text]);
    assert_eq!(run(&characters), whole, "{text:?} in {format:?}");
    whole
}

fn text(text: &str) -> OutputEvent {
    OutputEvent::Text(text.to_owned())
}

/// Returns the calls with parsed arguments.
#[track_caller]
pub fn calls(events: &[OutputEvent]) -> Vec<(String, Json)> {
    let mut all: Vec<(String, Json)> = Vec::new();
    for events in events {
        match events {
            OutputEvent::Call(name) => all.push((name.clone(), Json::Null)),
            OutputEvent::Arguments(text) => {
                all.last_mut().unwrap().1 = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
            }
            _ => {}
        }
    }
    all
}

#[test]
fn calls_of_every_family_are_parsed() {
    for (family, written, events) in families() {
        let source = template(&written);
        let wanted = [
            ("f".to_owned(), json!({"t": TEXT, "a": 7, "l": [1, "x"]})),
            ("g".to_owned(), json!({})),
        ];
        let found = split(&source, &filled(events), true);
        assert_eq!(calls(&found), wanted, "{family}: {:?}", format(&source));
        assert!(
            !found.iter().any(|events| matches!(events, OutputEvent::Text(_))),
            "{family}: {found:?}"
        );
        let first = split(&source, &filled(events), false);
        assert_eq!(calls(&first), wanted[..1], "{family}");
        // Parses the output of the template itself.
        if family != "Llama 3" {
            let found = split(&source, &format!("Let me see.\n{}", filled(events)), true);
            assert_eq!(
                (&found[0], calls(&found).len()),
                (&text("Let me see."), 2),
                "{family}: {found:?}"
            );
        }
    }
}

#[test]
fn non_calls_remain_content_in_every_family() {
    for (family, written, events) in families() {
        let source = template(&written);
        let unknown = filled(events)
            .replace("\"f\"", "\"unheard_of\"")
            .replace("f(", "unheard_of(");
        let unknown = unknown
            .replace("=f>", "=unheard_of>")
            .replace(">f\n", ">unheard_of\n")
            .replace("]f[", "]unheard_of[");
        let unknown = unknown
            .replace("functions.f", "functions.unheard_of")
            .replace("call:f{", "call:unheard_of{")
            .replace("name|>f<|", "name|>unheard_of<|");
        for other in ["Nothing.", "a < b [c] {d", &filled(events)[..6], "", &unknown] {
            let found = split(&source, other, true);
            let is_first_text = found
                .iter()
                .all(|events| !matches!(events, OutputEvent::Call(name) if name == "f"));
            assert!(is_first_text, "{family}: {other:?}: {found:?}");
            if other != unknown {
                let all: String = found
                    .iter()
                    .map(|events| {
                        if let OutputEvent::Text(text) = events {
                            text.as_str()
                        } else {
                            ""
                        }
                    })
                    .collect();
                assert_eq!(all.trim(), other.trim(), "{family}");
            }
        }
    }
}

#[test]
fn template_without_tools_has_no_format() {
    for source in [
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}",
        "{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}",
        "{{ raise_exception('no') }}",
    ] {
        assert_eq!(format(source), None, "{source}");
    }
    // This template renders tools but not calls; the format is known from a marker in its source.
    let granite = "{{ tools | tojson }}<|tool_call|>{% for m in messages %}{{ m.content }}{% endfor %}";
    let events = split(
        granite,
        "<|tool_call|>[{\"arguments\": {\"a\": 1}, \"name\": \"f\"}]",
        true,
    );
    assert_eq!(calls(&events), [("f".to_owned(), json!({"a": 1}))]);
}

#[test]
fn sloppy_calls_are_parsed() {
    let hermes = template(&families()[0].1);
    let one = "<tool_call>{\"arguments\": {\"a\": 1}, \"name\": \"g\"}</tool_call>";
    assert_eq!(calls(&split(&hermes, one, true)), [("g".to_owned(), json!({"a": 1}))]);
    let events = split(&hermes, &format!("{one} Done."), true);
    assert_eq!(events.last(), Some(&text("Done.")));
    assert_eq!(
        calls(&split(&hermes, one.trim_end_matches("</tool_call>"), true)).len(),
        1
    );
    assert_eq!(
        calls(&split(&hermes, "<tool_call>{\"name\": \"g\"}</tool_call>", true)),
        [("g".to_owned(), json!({}))]
    );
    // Qwen 3 Coder sometimes omits markers.
    let coder = template(&tagged_families()[0].1);
    let bare = "<function=f>\n<parameter=t>\nx\n\n</parameter>\n</function>\n</tool_call>";
    assert_eq!(
        calls(&split(&coder, bare, true)),
        [("f".to_owned(), json!({"t": "x\n"}))]
    );
    let cut = split(
        &coder,
        "<tool_call>\n<function=f>\n<parameter=t>\nx\n</parameter>",
        true,
    );
    assert_eq!(calls(&cut), [("f".to_owned(), json!({"t": "x"}))]);
    // Llama 3.1 writes this tag for its built-in tools.
    let llama = format!("{{# <|python_tag|> #}}{}", template(&families()[1].1));
    let tagged = "<|python_tag|>{\"name\": \"f\", \"parameters\": {\"a\": 1}}";
    assert_eq!(calls(&split(&llama, tagged, true)), [("f".to_owned(), json!({"a": 1}))]);
}

/// A marker inside a text argument belongs to the text, unless another argument or the end of the call follows.
#[test]
fn markers_inside_of_text_arguments_are_kept() {
    for (family, written, events) in tagged_families() {
        let source = template(&written);
        let format = format(&source).unwrap();
        let CallSyntax::Tagged { end, .. } = &format.form else {
            unreachable!()
        };
        for inner in [
            format!("a {} b", end.trim()),
            format!("{} b", end.trim()),
            format!("<x>{}</x>", end.trim()),
            format!("a{0}{0}b{0} <c> d", end.trim()),
        ] {
            let written = filled(&events.replace("TEXT", &inner));
            let found = split(&source, &written, true);
            let wanted = [
                ("f".to_owned(), json!({"t": inner, "a": 7, "l": [1, "x"]})),
                ("g".to_owned(), json!({})),
            ];
            assert_eq!(calls(&found), wanted, "{family}: {written}");
        }
        for (section, value) in [
            ("<![CDATA[a < b]]>".to_owned(), "a < b".to_owned()),
            (format!("<![CDATA[x{}y]]>", end.trim()), format!("x{}y", end.trim())),
            ("<![CDATA[]]]]><![CDATA[>]]>".to_owned(), "]]>".to_owned()),
            ("<![CDAT".to_owned(), "<![CDAT".to_owned()),
        ] {
            let found = split(&source, &filled(&events.replace("TEXT", &section)), true);
            assert_eq!(
                calls(&found)[0].1,
                json!({"t": value, "a": 7, "l": [1, "x"]}),
                "{family}: {section}"
            );
        }
    }
}

#[test]
fn truncated_text_argument_is_not_completed() {
    let coder = template(&tagged_families()[0].1);
    let begun = "<tool_call>\n<function=f>\n<parameter=t>\nx\n</parameter> y";
    let events = split(&coder, begun, true);
    let Some(OutputEvent::Arguments(arguments)) = events.last() else {
        panic!("{events:?}")
    };
    assert!(serde_json::from_str::<Json>(arguments).is_err(), "{arguments}");
    for rest in [
        "",
        "\n",
        "\n</func",
        "\n</function>",
        "\n</tool_call>",
        "\n</function>\n</tool_call>\n",
    ] {
        let whole = begun.replace("</parameter> y", &format!("</parameter>{rest}"));
        assert_eq!(
            calls(&split(&coder, &whole, true)),
            [("f".to_owned(), json!({"t": "x"}))],
            "{rest:?}"
        );
    }
}

#[test]
fn truncated_calls_are_never_content() {
    let cut = |source: &str, output: &str| {
        let format = Arc::new(format(source).unwrap());
        let mut parser = ToolCallParser::new(format, functions(), true);
        let mut events = Vec::new();
        parser.push(output, &mut events);
        parser.finish(Ending::CutOff, &mut events);
        joined(events)
    };
    let families = families();
    for (family, written, events) in &families {
        let (source, output) = (template(written), filled(events));
        for (n, _) in output.char_indices() {
            let found = cut(&source, &output[..n]);
            let is_text = |event: &OutputEvent| matches!(event, OutputEvent::Text(text) if !text.trim().is_empty());
            let has_text = found.iter().any(is_text);
            assert!(!has_text, "{family}: {:?}: {found:?}", &output[..n]);
        }
    }
    // Other objects are answers.
    let llama3 = template(&families[1].1);
    for other in ["{\"city\": \"Par", "{\"nam\": 1", "Hm {\"name\""] {
        assert_eq!(cut(&llama3, other), [text(other)]);
    }
    let hermes = template(&families[0].1);
    assert_eq!(cut(&hermes, "a < b\n<tool_"), [text("a < b")]);
    assert_eq!(cut(&hermes, "a < b"), [text("a < b")]);
}

#[test]
fn blanks_between_texts_around_calls_are_kept() {
    let hermes = template(&families()[0].1);
    let call = "<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>";
    let contents = |written: &str| -> String {
        let text = |event: OutputEvent| match event {
            OutputEvent::Text(text) => text,
            _ => String::new(),
        };
        split(&hermes, written, true).into_iter().map(text).collect()
    };
    for (written, content) in [
        (format!("First, \n{call}then"), "First, \nthen"),
        (format!("First,{call} then {call}\n"), "First, then"),
        (format!("First.\n\n{call}\n{call}\n\nDone."), "First.\n\n\n\nDone."),
        (format!("\n{call} Done."), "Done."),
        (format!("{call}\n"), ""),
    ] {
        assert_eq!(contents(&written), content, "{written:?}");
    }
}

/// Published templates by file name prefix, with the format of their calls.
const PUBLISHED: &[(&str, &str)] = &[
    ("Apertus", "object"),
    ("ByteDance-Seed-OSS", "tagged"),
    ("Cohere2MoE", "object"),
    ("CohereForAI-c4ai-command-r7b", "object"),
    ("GLM-4.6", "tagged"),
    ("GLM-4.7", "tagged"),
    ("Kimi-K3", "tagged"),
    ("LFM2-", "python"),
    ("LFM2.5-", "python"),
    ("MiMo-VL", "object"),
    ("MiniMax-M1", "object"),
    ("MiniMax-M2", "tagged"),
    ("MiniMax-M3", "elements"),
    ("Ministral", "named"),
    ("mistralai-Ministral", "named"),
    ("Mistral-Small-3.2", "named"),
    ("NVIDIA-Nemotron-3", "tagged"),
    ("NVIDIA-Nemotron-Nano-v2", "object"),
    ("NousResearch-Hermes", "object"),
    ("Qwen-Q", "object"),
    ("Qwen3-Coder", "tagged"),
    ("Qwen3.5", "tagged"),
    ("deepseek-ai-DeepSeek-V3.2", "tagged"),
    ("deepseek-ai-DeepSeek-V4", "tagged"),
    ("google-gemma-4", "bare"),
    ("ibm-granite", "object"),
    ("llama-cpp-deepseek-r1", "named"),
    ("meetkai-functionary-medium-v3.1", "named"),
    ("meta-llama-Llama-3", "object"),
    ("mistralai-Mistral-Nemo", "object"),
    ("moonshotai-Kimi-K2", "named"),
    ("muse-glimmer", "tagged"),
    ("openai-gpt-oss", "harmony"),
    ("llm-jp", "harmony"),
    ("poolside", "tagged"),
    ("unsloth-mistral-Devstral", "named"),
    ("upstage-Solar-Open", "named"),
];

/// Calls rendered by published templates are parsed correctly.
#[test]
#[ignore = "needs published chat templates (*.jinja) in the directory LLAMA_TEMPLATES"]
fn published_template_calls_are_parsed() {
    let folder = std::env::var_os("LLAMA_TEMPLATES").expect("LLAMA_TEMPLATES must be set to a directory");
    let (mut n_read, mut wrong) = (0, Vec::new());
    for entry in std::fs::read_dir(folder).expect("the directory is readable") {
        let path = entry.expect("the directory is readable").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some((_, kind)) = PUBLISHED.iter().find(|(start, _)| name.starts_with(start)) else {
            continue;
        };
        let source = std::fs::read_to_string(&path).expect("a template");
        let template = ChatTemplate::new(&source, "<s>", "</s>").expect("a template");
        n_read += 1;
        if name.starts_with("google-gemma-4") {
            let tags = engine::chat::reasoning_tags(&template, &source);
            assert_eq!(tags, Some(("<|channel>thought", "<channel|>")), "{name}");
        }
        let Some(format) = ToolFormat::of(&template, &source) else {
            wrong.push(format!("{name}: no format detected"));
            continue;
        };
        let found = match format.form {
            CallSyntax::Object { .. } => "object",
            CallSyntax::Named { .. } => "named",
            CallSyntax::Tagged { .. } => "tagged",
            CallSyntax::Bare { .. } => "bare",
            CallSyntax::Elements { .. } => "elements",
            CallSyntax::Python => "python",
            CallSyntax::Harmony => "harmony",
        };
        let Some((prompt, text, wanted)) = written(&template) else {
            continue;
        };
        let events = match format.form {
            CallSyntax::Harmony => {
                let mut events = Vec::new();
                let mut harmony = Harmony::new(functions(), true, &prompt);
                harmony.push(&text, &mut events);
                harmony.finish(Ending::Complete, &mut events);
                joined(events)
            }
            _ => {
                let calls = format
                    .messages
                    .map_or(text.clone(), |messages| messages.contents(&text));
                split(&source, &calls, true)
            }
        };
        if let Err(why) = super::lazy::tests::keeps(&published_tools(), &format, text.trim_start_matches("assistant")) {
            wrong.push(format!("{name}: {why}: {format:?} of {text:?}"));
        }
        if found != *kind || calls(&events) != [("f".to_owned(), wanted)] {
            wrong.push(format!("{name}: expected {kind}: {format:?} of {text:?}: {events:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(n_read >= 40, "only {n_read} known templates were read");
}

/// Tools that the published templates render.
fn published_tools() -> Tools {
    let tool = |f: &Function| {
        json!({"type": "function", "function": {"name": f.name, "description": "-", "parameters": {
            "type": "object", "properties": {"t": {"type": "string", "description": "-"}, "a": {"type": "integer", "description": "-"}}}}})
    };
    Tools {
        list: functions().iter().map(tool).collect(),
        choice: ToolChoice::Auto,
        parallel: true,
    }
}

/// Returns a prompt, the rendered call after it, and its arguments. `None` if the template rejects or omits
/// the call.
fn written(template: &ChatTemplate) -> Option<(String, String, Json)> {
    use engine::chat::Message;
    let arguments = json!({"t": "a <b> c", "a": 7});
    let with = serde_json::Map::from_iter([("tools".to_owned(), published_tools().list.into())]);
    let mut calling = Message::assistant("");
    let call = json!([{"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": arguments}}]);
    calling.fields.insert("tool_calls".to_owned(), call);
    let prompt = template.render(&[Message::user("U")], true, &with).ok()?;
    let all = template.render(&[Message::user("U"), calling], false, &with).ok()?;
    let n = prompt.bytes().zip(all.bytes()).take_while(|(a, b)| a == b).count();
    // Do not split a tag that is common to both renderings.
    let n = all[..all.floor_char_boundary(n)]
        .rfind(['>', ']', '\n', ':'])
        .map_or(0, |at| at + 1);
    let text = all[n..].trim_start_matches(['\n', ' ']).to_owned();
    let text = text
        .trim_start_matches("<think>")
        .trim_start()
        .trim_start_matches("</think>")
        .trim_start()
        .to_owned();
    text.contains("7").then_some((prompt, text, arguments))
}
