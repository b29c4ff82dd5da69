//! Tests of common chat formats, Python semantics, and hostile templates.

mod unsupported;

use super::*;
use serde_json::json;
use std::time::{Duration, SystemTime};

fn conversation() -> Vec<Message> {
    vec![
        Message::system("Be brief."),
        Message::user("Hi"),
        Message::assistant(" Hello! "),
        Message::user("Why is the sky blue?"),
    ]
}

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, "<s>", "</s>").unwrap_or_else(|e| panic!("{e}: {source}"))
}

#[track_caller]
fn check(source: &str, messages: &[Message], expected: &str) {
    assert_eq!(
        template(source).render(messages, true, &Map::new()).as_deref(),
        Ok(expected)
    );
}

/// Renders a template without messages, which therefore need not be printed.
fn eval(source: &str) -> Result<String, ChatError> {
    let source = format!("{{% for m in messages %}}{{{{ m.content }}}}{{% endfor +%}}{source}");
    ChatTemplate::new(&source, "<s>", "</s>")?.render(&[], false, &Map::new())
}

#[track_caller]
fn check_eval(cases: &[(&str, &str)]) {
    for (source, expected) in cases {
        assert_eq!(eval(source).as_deref(), Ok(*expected), "{source}");
    }
}

const CHATML: &str = "{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}";

#[test]
fn chatml_renders_conversation() {
    let expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n\
        <|im_start|>assistant\n Hello! <|im_end|>\n<|im_start|>user\nWhy is the sky blue?<|im_end|>\n\
        <|im_start|>assistant\n";
    check(CHATML, &conversation(), expected);
    let chatml = template(CHATML);
    assert!(chatml.has_system_role());
    let text = chatml
        .render(&[Message::user("a < b & \"c\"\n")], false, &Map::new())
        .unwrap();
    assert_eq!(text, "<|im_start|>user\na < b & \"c\"\n<|im_end|>\n");
    assert!(!chatml.has_bos(&text));
}

#[test]
fn llama3_renders_conversation() {
    let source = "{{- bos_token }}{% for m in messages %}{{ '<|start_header_id|>%s<|end_header_id|>' | replace('%s', m.role) }}\n\n\
        {{- '\\n\\n' ~ m['content'] | trim ~ '<|eot_id|>' }}{% endfor %}\
        {%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}";
    let expected = "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>\
        <|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>\
        <|start_header_id|>assistant<|end_header_id|>\n\nHello!<|eot_id|>\
        <|start_header_id|>user<|end_header_id|>\n\nWhy is the sky blue?<|eot_id|>\
        <|start_header_id|>assistant<|end_header_id|>\n\n";
    check(source, &conversation(), expected);
    assert!(template(source).has_bos(expected));
}

#[test]
fn llama3_uses_current_date() {
    let source = "{%- set today = date_string | default(strftime_now('%d %b %Y')) if strftime_now is defined %}Today: {{ today }}\
        {% for m in messages %}{{ m.content }}{% endfor %}";
    let clock = || SystemTime::UNIX_EPOCH + Duration::from_secs(1_735_689_599);
    let template = ChatTemplate::with_clock(source, "", "", clock).unwrap();
    let render = |extras: Json| template.render(&[], false, extras.as_object().unwrap());
    // Both values are local times, at most a day from the UTC date.
    let today = render(json!({})).unwrap();
    assert!(
        ["Today: 31 Dec 2024", "Today: 01 Jan 2025"].contains(&today.as_str()),
        "{today}"
    );
    assert_eq!(render(json!({"date_string": "now"})).as_deref(), Ok("Today: now"));
}

#[test]
fn templates_get_thinking_and_time() {
    let source = "{% for m in messages %}{{ m.content }}{% endfor %}{{ enable_thinking }} {{ date_string|length }} {{ datetime[:6] == date_string[3:6] ~ ' ' ~ date_string[:2] }}";
    let template = template(source);
    let render = |extras: Json| template.render(&[], false, extras.as_object().unwrap());
    assert_eq!(render(json!({})).as_deref(), Ok("True 11 True"));
    let own = json!({"enable_thinking": false, "date_string": "1 May", "datetime": "May 1"});
    assert_eq!(render(own).as_deref(), Ok("False 5 False"));
}

#[test]
fn templates_get_tools_as_text() {
    let template = template("{% for m in messages %}{{ m.content }}{% endfor %}[{{ 'a' + functions }}]");
    let render = |extras: Json| template.render(&[], false, extras.as_object().unwrap());
    assert_eq!(render(json!({})).as_deref(), Ok("[a]"));
    assert_eq!(
        render(json!({"tools": [{"name": "f"}]})).as_deref(),
        Ok("[a[\n  {\n    \"name\": \"f\"\n  }\n]]")
    );
    assert_eq!(render(json!({"functions": "g"})).as_deref(), Ok("[ag]"));
}

/// Gemma 2 has no system role and requires alternating user and model turns.
const GEMMA: &str = "{{ bos_token }}{% for m in messages %}\
    {% if m.role not in ('user', 'assistant') %}{{ raise_exception('no ' ~ m.role ~ ' role') }}{% endif %}\
    {% if (m.role == 'assistant') != (loop.index0 is odd) %}{{ raise_exception('roles must alternate') }}{% endif %}\
    {{ '<start_of_turn>' ~ ('model' if m.role == 'assistant' else m.role) ~ '\n' }}\
    {{ m.content | trim }}<end_of_turn>{{ '\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}";

#[test]
fn gemma_system_message_joins_first_user_turn() {
    let expected = "<s><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello!<end_of_turn>\n\
        <start_of_turn>user\nWhy is the sky blue?<end_of_turn>\n<start_of_turn>model\n";
    check(GEMMA, &conversation(), expected);
    let gemma = template(GEMMA);
    assert!(!gemma.has_system_role());
    let alone = gemma
        .render(&[Message::system("Be brief.")], false, &Map::new())
        .unwrap();
    assert_eq!(alone, "<s><start_of_turn>user\nBe brief.<end_of_turn>\n");
    let twice = gemma.render(&[Message::assistant("a"), Message::user("b")], true, &Map::new());
    let rejected = ChatError::Rejected {
        message: "roles must alternate".into(),
    };
    assert_eq!(twice, Err(rejected));
}

/// Returns a conversation as agents send it: with system messages in the middle and consecutive user messages.
fn of_an_agent() -> Vec<Message> {
    vec![
        Message::system("Be brief."),
        Message::system("Be kind."),
        Message::user("Here is Rome."),
        Message::user("Hi"),
        Message::assistant("Hello!"),
        Message::user("Why?"),
        Message::system("Soon."),
    ]
}

#[test]
fn unsupported_later_system_messages_become_user_messages() {
    let expected = "<s><start_of_turn>user\nBe brief.\n\nBe kind.\n\nHere is Rome.\n\nHi<end_of_turn>\n\
        <start_of_turn>model\nHello!<end_of_turn>\n<start_of_turn>user\nWhy?\n\nSoon.<end_of_turn>\n<start_of_turn>model\n";
    check(GEMMA, &of_an_agent(), expected);
    // Only the first message may be a system message: others are rejected or silently dropped.
    let refuses = "{{ raise_exception('system') }}";
    for otherwise in [refuses, ""] {
        let source = format!(
            "{{% for m in messages %}}{{% if m.role == 'system' and not loop.first %}}{otherwise}\
             {{% else %}}<{{{{ m.role }}}}>{{{{ m.content }}}}{{% endif %}}{{% endfor %}}"
        );
        let expected = "<system>Be brief.\n\nBe kind.<user>Here is Rome.<user>Hi<assistant>Hello!<user>Why?<user>Soon.";
        check(&source, &of_an_agent(), expected);
    }
    // System messages remain in place if the template supports them.
    let anywhere = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    let expected =
        "<system>Be brief.<system>Be kind.<user>Here is Rome.<user>Hi<assistant>Hello!<user>Why?<system>Soon.";
    check(anywhere, &of_an_agent(), expected);
}

#[test]
fn user_message_after_tool_result_is_merged() {
    // Mistral: a response without tool calls must separate two user messages.
    let source = "{% set turn = namespace(asks=true) %}{% for m in messages %}\
        {% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}\
        {% if (m.role == 'user') != turn.asks %}{{ raise_exception('roles must alternate') }}{% endif %}\
        {% set turn.asks = not turn.asks %}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    let mut call = Message::assistant("");
    call.fields.insert(
        "tool_calls".to_owned(),
        json!([{"function": {"name": "f", "arguments": {}}}]),
    );
    let messages = [Message::user("a"), call, Message::new("tool", "7"), Message::user("b")];
    check(source, &messages, "<user>a<assistant><tool>7\n\nb");
}

#[test]
fn mistral_renders_conversation() {
    // Silently drops system messages; the probe detects this.
    let source = "{{ bos_token }}{% for message in messages if message.role != 'system' %}\
        {% if message.role == 'user' %}{{ ' [INST] ' + message.content + ' [/INST]' }}\
        {% elif message.role == 'assistant' %}{{ ' ' + message.content.strip() + eos_token }}\
        {% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}";
    let expected = "<s> [INST] Be brief.\n\nHi [/INST] Hello!</s> [INST] Why is the sky blue? [/INST]";
    check(source, &conversation(), expected);
}

/// The Qwen 3 format: tools, tool calls, and reasoning removed before the latest question.
const QWEN3: &str = r##"{%- macro turn(role, text) -%}
    {{- '<|im_start|>' ~ role ~ '\n' ~ text ~ '<|im_end|>\n' -}}
{%- endmacro %}
{#- Where the latest question stands: what the assistant thought before it is dropped. -#}
{%- set latest = namespace(question=-1) %}
{%- for m in messages[::-1] if latest.question < 0 %}
    {%- if m.role == 'user' and latest.question < 0 %}
        {%- set latest.question = messages | length - loop.index %}
    {%- endif %}
{%- endfor %}
{%- set system = messages[0].content if messages[0].role == 'system' else none %}
{%- if tools %}
    {%- set lines %}
        {{- (system ~ '\n\n' if system else '') ~ "# Tools\n<tools>\n" }}
        {%- for tool in tools %}
            {{- tool | tojson ~ '\n' }}
        {%- endfor %}
        {{- '</tools>' }}
    {%- endset %}
    {{- turn('system', lines) }}
{%- elif system is not none %}
    {{- turn('system', system) }}
{%- endif %}
{%- for m in messages %}
    {%- set after = loop.nextitem.role if loop.nextitem is defined else '' %}
    {%- if m.role == 'user' %}
        {{- turn('user', m.content) }}
    {%- elif m.role == 'tool' %}
        {{- '<|im_start|>user' if loop.previtem is not defined or loop.previtem.role != 'tool' }}
        {{- '\n<tool_response>\n' ~ m.content ~ '\n</tool_response>' }}
        {{- '<|im_end|>\n' if after != 'tool' }}
    {%- elif m.role == 'assistant' %}
        {%- set parts = m.content.split('</think>') %}
        {%- set said = parts[-1].lstrip('\n') %}
        {%- if parts | length > 1 and loop.index0 > latest.question %}
            {%- set said = '<think>\n' + parts[0].split('<think>')[-1].strip('\n') + '\n</think>\n\n' + said %}
        {%- endif %}
        {%- set calls = [] if m.tool_calls is not defined else m.tool_calls | map(attribute='function') | list %}
        {%- set text %}
            {{- said }}
            {%- for call in calls %}
                {{- '\n' if said or not loop.first }}
                {{- '<tool_call>\n{"name": ' ~ call.name | tojson ~ ', "arguments": ' }}
                {{- call.arguments if call.arguments is string else call.arguments | tojson }}
                {{- '}\n</tool_call>' }}
            {%- endfor %}
        {%- endset %}
        {{- turn('assistant', text) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {{- '<think>\n\n</think>\n\n' if enable_thinking is defined and not enable_thinking }}
{%- endif %}"##;

#[test]
fn qwen3_renders_tools() {
    let tool = json!({"type": "function", "function": {"name": "weather", "parameters": {"city": "<string>"}}});
    let mut call = Message::assistant("");
    let calls = json!([
        {"function": {"name": "weather", "arguments": {"city": "Köln", "days": 2.0}}},
        {"function": {"name": "weather", "arguments": "{\"city\": \"Bonn\"}"}},
    ]);
    call.fields.insert("tool_calls".into(), calls);
    let (first, second) = (Message::new("tool", "rain"), Message::new("tool", "sun"));
    let messages = [
        Message::system("Be brief."),
        Message::user("Weather?"),
        call,
        first,
        second,
    ];
    let extras = json!({"tools": [tool], "enable_thinking": false});
    let found = template(QWEN3)
        .render(&messages, true, extras.as_object().unwrap())
        .unwrap();
    let expected = r##"<|im_start|>system
Be brief.

# Tools
<tools>
{"type": "function", "function": {"name": "weather", "parameters": {"city": "<string>"}}}
</tools><|im_end|>
<|im_start|>user
Weather?<|im_end|>
<|im_start|>assistant
<tool_call>
{"name": "weather", "arguments": {"city": "Köln", "days": 2.0}}
</tool_call>
<tool_call>
{"name": "weather", "arguments": {"city": "Bonn"}}
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
rain
</tool_response>
<tool_response>
sun
</tool_response><|im_end|>
<|im_start|>assistant
<think>

</think>

"##;
    assert_eq!(found, expected);
}

#[test]
fn qwen3_delta_detects_removed_reasoning() {
    let qwen = template(QWEN3);
    let none = Map::new();
    let mut messages = vec![Message::user("Hi")];
    let prompt = qwen.render(&messages, true, &none).unwrap();
    assert_eq!(prompt, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    // The response as stored in the context, before its end token is decoded.
    let plain = format!("{prompt}Hello!");
    messages.extend([Message::assistant("Hello!"), Message::user("More")]);
    let delta = qwen.render_delta(&plain, &messages, true, &none).unwrap();
    let suffix = "<|im_end|>\n<|im_start|>user\nMore<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(delta, Delta::Suffix(suffix.into()));

    let thought = "<think>\nEasy.\n</think>\n\nHello!";
    messages[1] = Message::assistant(thought);
    let full = format!("{prompt}Hello!{suffix}");
    let delta = qwen
        .render_delta(&format!("{prompt}{thought}"), &messages, true, &none)
        .unwrap();
    assert_eq!(delta, Delta::Full(full));
}

#[test]
fn content_may_be_list_of_parts() {
    let source = "{% for m in messages %}[{{ m.role }}]{% for part in m.content %}{% if part.type == 'text' %}\
        {{ part.text }}{% endif %}{% endfor %}{% endfor %}";
    check(source, &[Message::system("s"), Message::user("u")], "[system]s[user]u");
}

#[test]
fn arguments_of_calls_may_be_text() {
    let source = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ '<' + c.function.arguments + '>' }}{% endfor %}{% endfor %}";
    let mut called = Message::assistant("");
    let calls = json!([{"function": {"name": "f", "arguments": {"a": [1, "ä"], "b": {}}}}]);
    called.fields.insert("tool_calls".into(), calls);
    check(
        source,
        &[Message::user("u"), called],
        "u<{\"a\": [1, \"ä\"], \"b\": {}}>",
    );
}

#[test]
fn smollm2_renders_conversation() {
    // The SmolLM2 template, which adds a default system message.
    let source = "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}\
        {{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}\
        {{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}\
        {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
    let expected = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n\
        <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
    check(source, &[Message::user("Hi")], expected);
}

#[test]
fn string_methods_match_python() {
    check_eval(&[
        (
            "{{ '  a b '.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ ' a '.lstrip() }}|{{ ' a '.rstrip() }}",
            "a b|a|a | a",
        ),
        (
            "{{ 'a-b-c'.split('-') }}{{ 'a-b-c'.split('-', 1) }}{{ ' a  b '.split() }}",
            "['a', 'b', 'c']['a', 'b-c']['a', 'b']",
        ),
        (
            "{{ 'a-b-c'.rsplit('-', 1) }}{{ ' a  b c '.split(none, 1) }}{{ 'a b  c '.rsplit(none, 1) }}",
            "['a-b', 'c']['a', 'b c ']['a b', 'c']",
        ),
        (
            "{{ 'a-b-c'.split('-', maxsplit=1)[1] }}{{ 'ab'.split('-')[-1] }}",
            "b-cab",
        ),
        (
            "{{ 'Abc'.startswith('A') }} {{ 'abc'.endswith(('x', 'bc')) }} {{ 'abc'.startswith('x') }}",
            "True True False",
        ),
        (
            "{{ 'hello wORLD'.title() }} {{ 'hELLO x'.capitalize() }} {{ 'aB'.swapcase() }}",
            "Hello World Hello x Ab",
        ),
        (
            "{{ 'aXbX'.replace('X', '--') }} {{ 'aaa'.replace('a', 'b', 2) }}",
            "a--b-- bba",
        ),
        (
            "{{ 'äöü'.find('ü') }} {{ 'abc'.find('x') }} {{ 'abab'.rfind('b') }} {{ 'abab'.count('ab') }}",
            "2 -1 3 2",
        ),
        (
            "{{ '12'.isdigit() }} {{ ''.isdigit() }} {{ 'ab'.isalpha() }} {{ 'AB1'.isupper() }}",
            "True False True True",
        ),
        (
            "{{ ', '.join(['a', 'b']) }} {{ 'a\nb\r\nc'.splitlines() }}",
            "a, b ['a', 'b', 'c']",
        ),
        (
            "{{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.py'.removesuffix('.py') }}",
            "x x",
        ),
        (
            "{{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }}",
            "('a', '=', 'b=c') ('a=b', '=', 'c')",
        ),
        ("{{ '{} and {{}} {}'.format(1, 'b') }}", "1 and {} b"),
        (
            "{{ 'äbc'[1:] }}{{ 'abc'[::-1] }}{{ 'abcdef'[1:-1:2] }}{{ 'abc'[5:] }}{{ 'abc'[-2:] }}",
            "bccbabdbc",
        ),
    ]);
    assert!(eval("{{ 'a'.no_such_method() }}").is_err());
}

#[test]
fn collections_match_python() {
    check_eval(&[
        (
            "{% set d = {'b': 1, 'a': [1, 'x']} %}{{ d }} {{ d.keys() | list }} {{ d.get('c') }} {{ d.get('c', 3) }}",
            "{'b': 1, 'a': [1, 'x']} ['b', 'a'] None 3",
        ),
        (
            "{% for k, v in {'b': 1, 'a': 2}.items() %}{{ k }}={{ v }};{% endfor %}",
            "b=1;a=2;",
        ),
        ("{% for k, v in {'b': 1} | items %}{{ k }}={{ v }}{% endfor %}", "b=1"),
        (
            "{{ [1, 2] + [3] }} {{ (1,) }} {{ [0] * 3 }} {{ 'ab' * 2 }} {{ [1, 2, 3][::-1] }} {{ [1, 2, 3][-2:] }}",
            "[1, 2, 3] (1,) [0, 0, 0] abab [3, 2, 1] [2, 3]",
        ),
        (
            "{{ [4, 5].index(5) }} {{ [4, 5, 4].count(4) }} {{ range(3) | list }} {{ range(5, 0, -2) | list }}",
            "1 2 [0, 1, 2] [5, 3, 1]",
        ),
        (
            "{{ [1, 2, 3][5:1:-1] }} {{ [1, 2, 3][1:5:-1] }} {{ [][::-1] }} {{ [1, 2][::-9223372036854775807] }}",
            "[3] [] [] [2]",
        ),
        (
            "{{ true }} {{ none }} {{ 1.0 }} {{ 1e20 }} {{ 0.00001 }} {{ 7 // 2 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 1 ~ true }}",
            "True None 1.0 1e+20 1e-05 3 3.5 1024 1True",
        ),
        (
            "{{ \"it's\" | list | length }} {{ [\"it's\", 'a\"b', 'c\nd'] }}",
            "4 [\"it's\", 'a\"b', 'c\\nd']",
        ),
    ]);
}

#[test]
fn json_matches_python() {
    check_eval(&[
        (
            "{{ {'b': [1, 2.5, true, none], 'a': 'x<y>&\"\\n'} | tojson }}",
            "{\"b\": [1, 2.5, true, null], \"a\": \"x<y>&\\\"\\n\"}",
        ),
        (
            "{{ {'a': [1, {}], 'b': []} | tojson(indent=2) }}",
            "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}",
        ),
        (
            "{{ {'b': 1, 'a': 2} | tojson(separators=(',', ':'), sort_keys=true) }}",
            "{\"a\":2,\"b\":1}",
        ),
        (
            "{{ 'ä😀' | tojson }}{{ 'ä😀' | tojson(ensure_ascii=true) }}",
            "\"ä😀\"\"\\u00e4\\ud83d\\ude00\"",
        ),
        (
            "{{ [1.0, 1e300, 2 ** 62] | tojson }}",
            "[1.0, 1e+300, 4611686018427387904]",
        ),
    ]);
}

#[test]
fn whitespace_and_tags_match_transformers() {
    check_eval(&[
        ("a\n  {% if true %}\nb\n  {% endif %}\nc\n", "a\nb\nc"),
        (
            "{% for i in [1, 2, 3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}",
            "13",
        ),
        (
            "{% for i in [1, 2] %}{{ loop.previtem | default('-') }}{{ loop.nextitem is defined }}{{ loop.last }}{% endfor %}",
            "-TrueFalse1FalseTrue",
        ),
        (
            "{% macro m(x, y='d') %}({{ x }}{{ y }}){% endmacro %}{{ m(1) }}{{ m(1, y=2) }}",
            "(1d)(12)",
        ),
        (
            "{%- generation -%} a {%- endgeneration -%} b{% generation %}\nc{% endgeneration %}",
            "abc",
        ),
        ("{% set x %}a{{ 1 }}{% endset %}{{ x }}{{ x | length }}", "a12"),
        (
            "{{ undefined_thing }}|{{ undefined_thing is defined }}|{% if undefined_thing %}x{% endif %}",
            "|False|",
        ),
        (
            "{% set ns = namespace(n=0) %}{% for i in range(4) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
            "6",
        ),
        (
            "{{ [{'r': 'u', 'n': 1}, {'r': 'a', 'n': 2}] | selectattr('r', 'equalto', 'a') | map(attribute='n') | list }}",
            "[2]",
        ),
        (
            "{{ ['b', 'a'] | sort | join('-') }} {{ ' x ' | trim }} {{ 'aXb' | replace('X', '+') }} {{ 'a\nb' | indent(2) }}",
            "a-b x a+b a\n  b",
        ),
        ("{{ bos_token }}{{ eos_token }}", "<s></s>"),
        (
            "{{ tools is none }} {{ documents is none }} {{ undefined_thing | length }}",
            "True True 0",
        ),
        (
            "{% if 'a' in 'abc' and 2 in [1, 2] and 'k' in {'k': 1} and 3 not in [1] %}yes{% endif %}",
            "yes",
        ),
        (
            "{{ 1 < 2 < 3 }} {{ 1 if false else 2 }} {{ not true }} {{ 'a' == 'a' != 'b' }}",
            "True 2 False True",
        ),
    ]);
    // An attribute of an undefined value is an error, as in Jinja.
    assert!(matches!(
        eval("\n{{ nothing.at.all }}"),
        Err(ChatError::Render { line: Some(2), .. })
    ));
}

#[test]
fn invalid_templates_are_rejected() {
    let error = |source: &str| ChatTemplate::new(source, "", "").map(drop).unwrap_err();
    assert_eq!(error(" \n"), ChatError::NoTemplate);
    assert!(matches!(error("ok\n{% if %}"), ChatError::Syntax { line: Some(2), .. }));
    assert!(matches!(error("{% include 'other' %}"), ChatError::Syntax { .. }));
    assert!(matches!(error("{{ self.a() }}"), ChatError::Syntax { .. }));
    for lost in [
        "chatml",
        "{{ bos_token }}",
        "{% for m in messages %}{{ m.role }}{% endfor %}",
    ] {
        assert_eq!(error(lost), ChatError::NoUser);
    }
    assert_eq!(
        error(&"x".repeat(1 << 20)),
        ChatError::Limit {
            what: "bytes of template",
            limit: 262_144
        }
    );
    let text = error("ok\n{% if %}").to_string();
    assert!(
        text.starts_with("invalid chat template: ") && text.ends_with(" (line 2)"),
        "{text}"
    );
    assert_eq!(
        eval("{{ raise_exception('no') }}"),
        Err(ChatError::Rejected { message: "no".into() })
    );
    let long = eval("{{ raise_exception('ä' * 100000) }}");
    assert!(
        matches!(&long, Err(ChatError::Rejected { message }) if message.chars().count() == 1001),
        "{long:?}"
    );
}

#[track_caller]
fn fails_soon(sources: &[String]) {
    for source in sources {
        let start = std::time::Instant::now();
        let result = eval(source);
        assert!(result.is_err(), "{source}: {} bytes", result.unwrap().len());
        assert!(start.elapsed() < Duration::from_secs(60), "{source}");
    }
}

/// Containers cannot contain themselves, grow without bound, or be moved too often; widths are limited.
#[test]
fn hostile_containers_and_widths_exceed_limits() {
    let cases: [String; _] = [
        "{% set l = [1] %}{% for i in range(99999) %}{% for j in range(99999) %}{% set _ = l.append(l) %}{% endfor %}{% endfor %}".into(),
        "{% set l = [] %}{% set _ = l.append((l,)) %}".into(),
        "{% set d = {} %}{% set _ = d.update(a=[d]) %}".into(),
        "{% set l = [] %}{% set _ = l.append(l.append) %}".into(),
        "{% set l = [] %}{% set _ = l.append(cycler(l)) %}".into(),
        "{% set l = [] %}{% set _ = l.append(namespace(l=l)) %}".into(),
        "{% set ns = namespace(l=[0]) %}{% for i in range(99999) %}{% set l = [i] %}{% set _ = ns.l.append(l) %}{% set ns.l = l %}{% endfor %}\
         {% set a = [1] %}{% for i in range(99999) %}{% for j in range(999) %}{% set _ = a.extend(a) %}{% endfor %}{% endfor %}"
            .into(),
        "{% set a = range(99999) | list %}{% for i in range(99999) %}{% set _ = a.insert(0, a.pop(0)) %}{% endfor %}".into(),
        "{{ '%99999999d' % 1 }}".into(),
        "{{ '{:99999999}'.format(1) }}".into(),
        "{% for i in range(99999) %}{% for j in range(99999) %}{{ '%99999d' % 1 }}{% endfor %}{% endfor %}".into(),
        "{{ 'a' | center(1000000000) }}".into(),
        "{{ 'a'.ljust(1000000000) }}".into(),
        "{{ range(1000000000) }}".into(),
        "{{ strftime_now('%9999999d') }}".into(),
    ];
    fails_soon(&cases);
}

/// Each template would hang, exhaust memory, or overflow the stack without the limits.
#[test]
fn hostile_templates_exceed_limits() {
    let double = |start: &str, step: &str, end: &str| {
        format!("{{% set ns = namespace(x={start}) %}}{{% for i in range(1000) %}}{step}{{% endfor %}}{end}")
    };
    let set = |value: &str, end: &str| double("'ab'", &format!("{{% set ns.x = {value} %}}"), end);
    let nest = |value: &str, end: &str| double("[1]", &format!("{{% set ns.x = {value} %}}"), end);
    let loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
    let cases = [
        loops.to_string(),
        "{% for a in range(99999) %}{% for b in range(99999) %}0123456789{% endfor %}{% endfor %}".into(),
        "{% set x %}{% for a in range(99999) %}{% for b in range(999) %}0123456789{% endfor %}{% endfor %}{% endset %}"
            .into(),
        "{{ 'a' * 1000000000000 }}".into(),
        "{{ [1] * 1000000000000 }}".into(),
        "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}".into(),
        "{{ ('a' * 1000000) | replace('', 'b' * 1000000) }}".into(),
        "{{ ('b' * 1000000).join(range(10000)) }}".into(),
        "{{ (['a'] * 1000000) | join('b' * 100000) }}".into(),
        "{{ ('\n' * 1000000) | indent(1000000000) }}".into(),
        "{{ ('\n' * 1000000) | indent(250) }}".into(),
        set("ns.x ~ ns.x", ""),
        set("ns.x + ns.x", ""),
        set("ns.x * 2", ""),
        set("[ns.x, ns.x] | join", ""),
        set("ns.x.replace('a', 'aa').replace('b', 'bb')", ""),
        double(
            "'ab'",
            "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}",
            "",
        ),
        nest("ns.x + ns.x", ""),
        nest("[ns.x]", "{{ ns.x }}"),
        nest("(ns.x,)", "{{ ns.x == ns.x }}"),
        nest("{'a': ns.x}", "{{ ns.x | tojson }}"),
        nest("[ns.x, ns.x, ns.x, ns.x]", "{{ ns.x }}"),
        nest("(ns.x | list,)", ""),
        nest("dict(a=ns.x)", ""),
        nest("dict(a=ns.x).items()", ""),
        nest("dict(a=ns.x) | dictsort", ""),
        nest("namespace(a=ns.x)", ""),
        nest("ns", "{{ ns }}"),
        nest("[ns]", "{{ ns }}"),
        nest("{'k': {'l': ns}}", "{{ ns | tojson }}"),
        "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}".into(),
        "{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(0) }}".into(),
        "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}".into(),
        "{% set a = ['x' * 1000000] * 100000 %}{{ a }}".into(),
        "{% set a = ['x' * 1000] * 100000 %}{% for i in range(99999) %}{% if a == a + [] %}{% endif %}{% endfor %}"
            .into(),
        "{% set a = ['x' * 1000] * 100000 %}{% for i in range(99999) %}{% if [1] in a %}{% endif %}{% endfor %}".into(),
        "{% set a = range(99999) | list %}{% for i in range(99999) %}{{ a | sort | first }}{% endfor %}".into(),
        "{{ 'x'[0:'y'] }}".into(),
        "{{ 'x'[::0] }}".into(),
    ];
    fails_soon(&cases);
    assert_eq!(
        eval(loops),
        Err(ChatError::Limit {
            what: "instructions",
            limit: super::meter::MAX_FUEL
        })
    );
}

/// Deeply nested sources within the size limit fail or render, but do not overflow the stack.
#[test]
fn deep_sources_do_not_overflow() {
    let n = 100_000;
    let deep = |open: &str, middle: &str, close: &str| {
        let n = n.min(250_000 / (open.len() + close.len()));
        format!("{}{middle}{}", open.repeat(n), close.repeat(n))
    };
    let cases = [
        format!("{{{{ {} }}}}", deep("(", "1", ")")),
        format!("{{{{ {} }}}}", deep("[", "1", "]")),
        format!("{{{{ a{} }}}}", deep("", "", ".b")),
        format!("{{{{ a{} }}}}", deep("", "", "[0]")),
        format!("{{{{ a{} }}}}", deep("", "", "()")),
        format!("{{{{ 1{} }}}}", deep("", "", "|abs")),
        format!("{{{{ 1{} }}}}", deep("", "", "+1")),
        format!("{{{{ 1{} }}}}", deep("", "", "~1")),
        format!("{{{{ 1{} }}}}", deep("", "", " and 1")),
        format!("{{{{ 1{} }}}}", deep("", "", "<1")),
        format!("{{{{ {}1 }}}}", deep("not ", "", "")),
        format!("{{{{ {}1 }}}}", deep("-", "", "")),
        format!("{{{{ {}1 }}}}", deep("1 if 1 else ", "", "")),
        format!("{{{{ 1{} }}}}", deep("", "", " is odd")),
        deep("{% if 1 %}", "x", "{% endif %}"),
        format!("{{% if 0 %}}{}{{% endif %}}", deep("{% elif 0 %}", "", "")),
        deep("{% for x in [1] %}", "x", "{% endfor %}"),
        deep("{% set x %}", "x", "{% endset %}"),
        deep("{% macro m() %}", "x", "{% endmacro %}"),
    ];
    for source in &cases {
        // Runs on a small stack, as a caller may.
        let run = || {
            ChatTemplate::new(source, "", "")
                .and_then(|t| t.render(&[], false, &Map::new()))
                .map(drop)
        };
        let result = std::thread::scope(|s| {
            std::thread::Builder::new()
                .stack_size(256 << 10)
                .spawn_scoped(s, run)
                .unwrap()
                .join()
                .unwrap()
        });
        assert_ne!(result, Err(ChatError::Engine), "{}", &source[..60]);
    }
}

#[test]
fn hostile_input_is_rejected() {
    let mut json = json!(1);
    for _ in 0..200 {
        json = json!([json]);
    }
    let mut message = Message::user("x");
    message.fields.insert("deep".into(), json);
    let result = template(CHATML).render(&[message], true, &Map::new());
    assert_eq!(
        result,
        Err(ChatError::Limit {
            what: "levels of nesting in the input",
            limit: 128
        })
    );
}

#[test]
fn long_conversations_are_within_limits() {
    let text = "All work and no play makes Jack a dull boy. ".repeat(100);
    let messages: Vec<Message> = (0..2000)
        .map(|i| {
            if i % 2 == 0 {
                Message::user(&text)
            } else {
                Message::assistant(&text)
            }
        })
        .collect();
    for source in [CHATML, GEMMA, QWEN3] {
        let prompt = template(source).render(&messages, true, &Map::new()).unwrap();
        assert!(prompt.len() > 2000 * text.len());
    }
}
