#!/usr/bin/env python3
"""Speaks to a server with the client programs that people have: the packages of PyPI, in a virtual environment in the cache.

    python3 tests/tools/server_clients.py http://127.0.0.1:8080

Prints a line for each check; any that fails ends it with a status other than 0. The server has to serve a model that follows instructions.
"""

import hashlib
import json
import os
import pathlib
import subprocess
import sys

PACKAGES = ["openai==3.54.0", "anthropic==2.12.0", "ollama==0.6.3", "pydantic==2.*"]


def environment():
    """The interpreter of the environment, which is made whole or not at all."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "llama-tests"
    name = hashlib.sha256(" ".join(PACKAGES).encode()).hexdigest()[:12]
    folder = cache / f"clients-{name}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES], check=True)
        (folder / "complete").touch()
    return python


def check_openai(base):
    import openai
    from pydantic import BaseModel

    client = openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    question = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]

    answer = client.chat.completions.create(model=model, messages=question, max_tokens=32, temperature=0)
    text = answer.choices[0].message.content
    assert "Paris" in text, text
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    print("openai chat:", text)

    parts, usage, finish = [], None, None
    options = {"include_usage": True}
    for chunk in client.chat.completions.create(
        model=model, messages=question, max_tokens=32, temperature=0, stream=True, stream_options=options
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            parts.append(choice.delta.content or "")
            finish = choice.finish_reason or finish
    assert "".join(parts) == text, (parts, text)
    assert usage.completion_tokens == answer.usage.completion_tokens and finish == answer.choices[0].finish_reason
    assert usage.prompt_tokens_details.cached_tokens > 0, "the same prompt again"
    print("openai stream:", len(parts), "pieces,", usage.prompt_tokens_details.cached_tokens, "tokens known")

    class City(BaseModel):
        name: str
        country: str
        is_capital: bool

    parsed = client.chat.completions.parse(
        model=model,
        messages=[{"role": "user", "content": "Describe the city of Paris as JSON."}],
        response_format=City,
        max_tokens=80,
        temperature=0,
    )
    city = parsed.choices[0].message.parsed
    assert isinstance(city, City), parsed
    print("openai structured:", city)
    loose = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Give a JSON object with a name."}],
        response_format={"type": "json_object"},
        max_tokens=200,
        temperature=0,
    )
    if loose.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(loose.choices[0].message.content), dict)
    print("openai json_object:", loose.choices[0].finish_reason)

    many = client.chat.completions.create(
        model=model, messages=question, n=3, max_tokens=8, temperature=1.5, seed=7, logprobs=True, top_logprobs=2
    )
    assert [choice.index for choice in many.choices] == [0, 1, 2]
    assert all(len(token.top_logprobs) == 2 for choice in many.choices for token in choice.logprobs.content)
    print("openai n and logprobs:", [choice.message.content for choice in many.choices])

    plain = client.completions.create(model=model, prompt="One, two, three, four,", max_tokens=6, temperature=0)
    assert "five" in plain.choices[0].text, plain
    rated = client.completions.create(
        model=model, prompt="One, two, three", max_tokens=1, temperature=0, echo=True, logprobs=1
    )
    assert rated.choices[0].logprobs.token_logprobs[0] is None
    assert all(x <= 0 for x in rated.choices[0].logprobs.token_logprobs[1:])
    streamed = client.completions.create(
        model=model, prompt="One, two, three, four,", max_tokens=6, temperature=0, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in streamed) == plain.choices[0].text
    print("openai completions:", plain.choices[0].text)

    vectors = client.embeddings.create(model=model, input=["a cat", "a kitten", "the stock market"])
    cat, kitten, market = [vector.embedding for vector in vectors.data]
    dot = lambda a, b: sum(x * y for x, y in zip(a, b))
    assert abs(dot(cat, cat) - 1) < 1e-3 and dot(cat, kitten) > dot(cat, market), "near in meaning, near in direction"
    print("openai embeddings:", len(cat), "elements")

    for wrong, error in [
        ({"max_tokens": -1}, openai.BadRequestError),
        ({"extra_body": {"no_such_field": 1}}, openai.BadRequestError),
        ({"messages": [{"role": "user", "content": "word " * 200_000}]}, openai.BadRequestError),
    ]:
        try:
            client.chat.completions.create(**{"model": model, "messages": question, "max_tokens": 4, **wrong})
            raise AssertionError(f"{wrong} is taken")
        except error as refused:
            assert refused.body["message"], refused
    # A stream that is left ends its work; the next answer is the same.
    stream = client.chat.completions.create(model=model, messages=question, max_tokens=400, stream=True)
    next(iter(stream))
    stream.close()
    again = client.chat.completions.create(model=model, messages=question, max_tokens=32, temperature=0)
    assert again.choices[0].message.content == text
    print("openai errors and streams that are left: fine")


def check_responses(base):
    import openai
    from pydantic import BaseModel

    client = openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0)
    question = "What is the capital of France? Answer in one sentence."
    # A response that its limit cuts is none that the package calls complete.
    asked = {"model": "any", "input": question, "max_output_tokens": 400, "temperature": 0}
    answer = client.responses.create(**asked)
    assert "Paris" in answer.output_text and answer.usage.output_tokens > 0, answer
    kinds, text = [], ""
    with client.responses.stream(**asked) as stream:
        for event in stream:
            kinds.append(event.type)
            if event.type == "response.output_text.delta":
                text += event.delta
        last = stream.get_final_response()
    assert text == answer.output_text == last.output_text, (text, answer)
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1].startswith("response."), kinds
    print("openai responses, streams:", text)

    class City(BaseModel):
        name: str
        is_capital: bool

    parsed = client.responses.parse(model="any", input="Describe the city of Paris as JSON.", text_format=City, max_output_tokens=80)
    assert isinstance(parsed.output_parsed, City), parsed
    after = client.responses.create(model="any", input="And of Italy?", previous_response_id=answer.id, max_output_tokens=16)
    assert after.usage.input_tokens > answer.usage.input_tokens and after.previous_response_id == answer.id
    assert client.responses.retrieve(answer.id).output_text == answer.output_text
    client.responses.delete(answer.id)
    for wrong, error in [({"previous_response_id": answer.id}, openai.BadRequestError), ({"input": []}, openai.BadRequestError)]:
        try:
            client.responses.create(**{**asked, **wrong})
            raise AssertionError(f"{wrong} is taken")
        except error as refused:
            assert refused.body["message"], refused
    print("openai responses, structure, turns, errors:", parsed.output_parsed)

    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
    function = {"name": "weather", "description": "Tells the weather of a city.", "parameters": parameters}
    tools = [{"type": "function", "strict": True, **function}]
    weather = {"model": "any", "input": "How is the weather in Paris?", "max_output_tokens": 60, "temperature": 0}
    called = client.responses.create(**weather, tools=tools, tool_choice="required").output[0]
    assert called.type == "function_call" and isinstance(json.loads(called.arguments)["city"], str), called
    pieces = ""
    with client.responses.stream(**weather, tools=tools, tool_choice={"type": "function", "name": "weather"}) as stream:
        for event in stream:
            if event.type == "response.function_call_arguments.delta":
                pieces += event.delta
    assert json.loads(pieces) == json.loads(called.arguments), (pieces, called)
    messages = [{"role": "user", "content": weather["input"]}]
    chat = {"model": "any", "messages": messages, "tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    with client.chat.completions.stream(**chat, max_tokens=60, temperature=0) as stream:
        for _ in stream:
            pass
        call = stream.get_final_completion().choices[0].message.tool_calls[0]
    assert call.function.name == "weather" and json.loads(call.function.arguments) == json.loads(called.arguments), call
    print("openai functions, whole and piece by piece:", call.function.arguments)


def check_anthropic(base):
    import anthropic

    client = anthropic.Anthropic(base_url=base, api_key="none", max_retries=0)
    asked = {
        "model": "any",
        "max_tokens": 32,
        "extra_body": {"temperature": 0},
        "messages": [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}],
    }
    answer = client.messages.create(**asked)
    text = answer.content[0].text
    assert "Paris" in text and answer.stop_reason in ("end_turn", "max_tokens"), answer
    counted = client.messages.count_tokens(model="any", messages=asked["messages"])
    assert counted.input_tokens == answer.usage.input_tokens + answer.usage.cache_read_input_tokens
    with client.messages.stream(**asked) as stream:
        streamed = "".join(stream.text_stream)
        last = stream.get_final_message()
    assert streamed == text and last.usage.output_tokens == answer.usage.output_tokens, (streamed, text)
    assert last.usage.cache_read_input_tokens > 0
    told = client.messages.create(**{**asked, "system": [{"type": "text", "text": "Answer in French."}]})
    assert told.usage.input_tokens + told.usage.cache_read_input_tokens != counted.input_tokens, "a template may have instructions of its own"
    try:
        client.messages.create(**{**asked, "max_tokens": 0})
        raise AssertionError("no tokens are taken for some")
    except anthropic.BadRequestError as refused:
        assert refused.body["error"]["type"] == "invalid_request_error", refused
    print("anthropic messages, streams, counts, errors:", text)


def check_ollama(base):
    import ollama

    client = ollama.Client(host=base)
    model = client.list().models[0].model
    options = {"temperature": 0, "num_predict": 32}
    question = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
    answer = client.chat(model=model, messages=question, options=options)
    text = answer.message.content
    assert "Paris" in text and answer.done, answer
    parts = list(client.chat(model=model, messages=question, options=options, stream=True))
    assert "".join(part.message.content for part in parts) == text and parts[-1].eval_count == answer.eval_count
    said = client.generate(model=model, prompt=question[0]["content"], options=options)
    assert said.response == text, said
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    bound = client.chat(model=model, messages=question, options={**options, "num_predict": 100}, format=schema)
    assert isinstance(json.loads(bound.message.content)["city"], str), bound
    vectors = client.embed(model=model, input=["a cat", "a kitten"]).embeddings
    assert len(vectors) == 2 and len(vectors[0]) == len(vectors[1])
    shown = client.show(model)
    assert "completion" in shown.capabilities and shown.modelinfo["general.architecture"], shown
    assert client.ps().models[0].model == model
    try:
        client.chat(model=model, messages=question, format={"type": "nothing known"})
        raise AssertionError("a schema that means nothing is taken")
    except ollama.ResponseError as refused:
        assert refused.status_code == 400 and refused.error, refused
    print("ollama chats, streams, structure, vectors, models:", text)


CHECKS = [check_openai, check_responses, check_anthropic, check_ollama]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    if os.environ.get("LLAMA_CLIENTS") != "here":
        python = environment()
        env = {**os.environ, "LLAMA_CLIENTS": "here", "NO_PROXY": "127.0.0.1,localhost"}
        sys.exit(subprocess.run([python, __file__, sys.argv[1]], env=env).returncode)
    for check in CHECKS:
        check(sys.argv[1].rstrip("/"))


main()
