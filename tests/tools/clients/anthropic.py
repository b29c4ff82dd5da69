"""The package `anthropic`."""

from .sdks import PACKAGES as PACKAGES


def check(base):
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
    assert told.usage.input_tokens + told.usage.cache_read_input_tokens != counted.input_tokens, "the system prompt did not change the number of input tokens"
    try:
        client.messages.create(**{**asked, "max_tokens": 0})
        raise AssertionError("max_tokens = 0 was accepted")
    except anthropic.BadRequestError as refused:
        assert refused.body["error"]["type"] == "invalid_request_error", refused
    print("anthropic messages, streams, counts, errors:", text)
