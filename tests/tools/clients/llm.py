"""The command `llm` by Simon Willison, with models of two APIs."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

PACKAGES = ["llm==0.36"]
# The schema limits lengths and properties, because a small model may not stop.
PROPERTIES = {"name": {"type": "string", "maxLength": 40}, "is_capital": {"type": "boolean"}}
CITY = {"type": "object", "properties": PROPERTIES, "required": [*PROPERTIES], "additionalProperties": False}
QUESTION = "What is the capital of France? Answer in one sentence."
TOOL = 'def weather(city: str) -> str:\n    "Tells the weather of a city."\n    return "It rains in " + city + "."\n'


def check(base):
    with tempfile.TemporaryDirectory() as directory:
        home = pathlib.Path(directory)
        model = lambda name, **more: {"model_id": name, "model_name": "any", "api_base": f"{base}/v1", **more}
        able = {"supports_schema": True, "supports_tools": True}
        models = [model("chat", **able), model("answers", responses=True, **able), model("texts", completion=True)]
        # JSON is valid YAML.
        (home / "extra-openai-models.yaml").write_text(json.dumps(models))
        for name in ["chat", "answers"]:
            check_model(home, name)
        text = llm(home, "-m", "texts", "-o", "max_tokens", "6", "-o", "temperature", "0", "One, two, three, four,")
        assert "five" in text, text
        vector = json.loads(llm(home, "embed", "-m", "3-small", "-c", "a cat", OPENAI_BASE_URL=f"{base}/v1"))
        assert len(vector) > 100 and abs(sum(x * x for x in vector) - 1) < 1e-3
        print("llm, texts, vectors:", text.strip(), len(vector))


def llm(home, *arguments, **variables):
    env = {**os.environ, "LLM_USER_PATH": str(home), **variables}
    done = subprocess.run([sys.executable, "-m", "llm", *arguments], env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done.stdout


def check_model(home, name):
    asked = ["-m", name, "-o", "temperature", "0", "-o", "max_tokens", "400"]
    text = llm(home, *asked, QUESTION)
    assert "Paris" in text and llm(home, *asked, "--no-stream", QUESTION) == text, text
    after = llm(home, *asked, "-c", "Say it again.")
    assert after, "the turn after"
    for way in [[], ["--no-stream"]]:
        city = json.loads(llm(home, *asked, *way, "--schema", json.dumps(CITY), "Describe the city of Paris as JSON."))
        assert isinstance(city["name"], str) and isinstance(city["is_capital"], bool), city
        # The model may call the tool: this client cannot require a call.
        assert llm(home, *asked, *way, "--functions", TOOL, "How is the weather in Paris?"), "an answer with functions"
    print("llm, whole, streams, turns, structure, functions:", name, text.strip(), city)
