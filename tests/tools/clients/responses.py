"""The package `openai`: responses and functions."""

import json

from .sdks import PACKAGES as PACKAGES


# The package does not treat a truncated response as complete.
ASKED = {"model": "any", "input": "What is the capital of France? Answer in one sentence.", "max_output_tokens": 400, "temperature": 0}


def check(base):
    import openai

    client = openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0)
    answer = check_text(client)
    check_turns(client, answer)
    check_functions(client)


def check_text(client):
    answer = client.responses.create(**ASKED)
    assert "Paris" in answer.output_text and answer.usage.output_tokens > 0, answer
    kinds, text = [], ""
    with client.responses.stream(**ASKED) as stream:
        for event in stream:
            kinds.append(event.type)
            if event.type == "response.output_text.delta":
                text += event.delta
        last = stream.get_final_response()
    assert text == answer.output_text == last.output_text, (text, answer)
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1].startswith("response."), kinds
    print("openai responses, streams:", text)
    return answer


def check_turns(client, answer):
    import openai
    from pydantic import BaseModel

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
            client.responses.create(**{**ASKED, **wrong})
            raise AssertionError(f"{wrong} is taken")
        except error as refused:
            assert refused.body["message"], refused
    print("openai responses, structure, turns, errors:", parsed.output_parsed)


def check_functions(client):
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
    print("openai functions, unstreamed and streamed:", call.function.arguments)
