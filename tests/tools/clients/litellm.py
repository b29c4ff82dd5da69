"""LiteLLM, with the APIs of OpenAI, Anthropic, and Ollama."""

import asyncio
import json

# LiteLLM imports parts of its MCP package unconditionally.
PACKAGES = ["litellm==1.106.2", "mcp==2.3.0"]
QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
ASKED = {"temperature": 0, "max_tokens": 60, "api_key": "none", "num_retries": 0}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Tells the weather of a city.", "parameters": PARAMETERS}}]


def check(base):
    ways = {
        "openai/any": f"{base}/v1",
        "hosted_vllm/any": f"{base}/v1",
        "anthropic/any": base,
        "ollama_chat/any": base,
    }
    for model, api_base in ways.items():
        asked = {**ASKED, "model": model, "api_base": api_base}
        check_text(asked)
        check_structure(asked)
        check_functions(asked)
    check_others({**ASKED, "api_base": f"{base}/v1"})


def check_text(asked):
    import litellm

    answer = litellm.completion(**asked, messages=QUESTION)
    text = answer.choices[0].message.content
    assert "Paris" in text and answer.usage.completion_tokens > 0, answer
    streamed = litellm.completion(**asked, messages=QUESTION, stream=True, stream_options={"include_usage": True})
    pieces, usage = [], None
    for chunk in streamed:
        usage = getattr(chunk, "usage", None) or usage
        pieces += [choice.delta.content or "" for choice in chunk.choices]
    assert "".join(pieces) == text, (pieces, text)
    assert usage.completion_tokens == answer.usage.completion_tokens, (usage, answer.usage)

    async def later():
        return await litellm.acompletion(**asked, messages=QUESTION)

    assert asyncio.run(later()).choices[0].message.content == text
    print("litellm, whole and streams:", asked["model"], text)


def check_structure(asked):
    import litellm
    from pydantic import BaseModel

    class City(BaseModel):
        name: str
        is_capital: bool

    said = [{"role": "user", "content": "Describe the city of Paris as JSON."}]
    answer = litellm.completion(**asked, messages=said, response_format=City)
    city = City.model_validate_json(answer.choices[0].message.content)
    print("litellm, structure:", asked["model"], city)


def check_functions(asked):
    import litellm

    said = [{"role": "user", "content": "How is the weather in Paris?"}]
    asked = {**asked, "tools": TOOLS}
    # The Ollama API has no `tool_choice`, so a tool call is optional.
    choice = {} if asked["model"].startswith("ollama") else {"tool_choice": "required"}
    message = litellm.completion(**asked, **choice, messages=said).choices[0].message
    if not choice:
        return
    call = message.tool_calls[0]
    arguments = json.loads(call.function.arguments)
    assert call.function.name == "weather" and isinstance(arguments["city"], str), message
    chunks = list(litellm.completion(**asked, **choice, messages=said, stream=True))
    streamed = litellm.stream_chunk_builder(chunks, messages=said).choices[0]
    assert json.loads(streamed.message.tool_calls[0].function.arguments) == arguments, streamed
    assert streamed.finish_reason == "tool_calls", streamed
    told = {"role": "tool", "tool_call_id": call.id, "name": "weather", "content": "It rains."}
    after = litellm.completion(**asked, messages=[*said, message.model_dump(exclude_none=True), told])
    # The model may call the tool again.
    assert after.choices[0].message.content or after.choices[0].message.tool_calls, after
    print("litellm, functions:", asked["model"], arguments)


def check_others(asked):
    import litellm

    text = litellm.text_completion(**asked, model="text-completion-openai/any", prompt="One, two, three, four,")
    assert "five" in text.choices[0].text, text
    response = litellm.responses(
        model="openai/any", input=QUESTION[0]["content"], max_output_tokens=400, temperature=0, api_base=asked["api_base"], api_key="none"
    )
    assert "Paris" in response.output[0].content[0].text, response
    bare = {"api_base": asked["api_base"], "api_key": "none"}
    vectors = litellm.embedding(model="openai/any", input=["a cat", "a kitten"], **bare).data
    assert len(vectors) == 2 and len(vectors[0]["embedding"]) == len(vectors[1]["embedding"])
    listed = litellm.embedding(model="ollama/any", input=["a cat", "a kitten"], api_base=asked["api_base"].removesuffix("/v1")).data
    assert len(listed[1]["embedding"]) == len(vectors[1]["embedding"])
    try:
        litellm.completion(**{**asked, "max_tokens": -1}, model="openai/any", messages=QUESTION)
        raise AssertionError("max_tokens = -1 was accepted")
    except litellm.BadRequestError as refused:
        assert "max_tokens" in str(refused), refused
    print("litellm, texts, responses, vectors, errors:", text.choices[0].text)
