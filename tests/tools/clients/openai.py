"""The package `openai`: chat completions, completions, and embeddings."""

import json

from .sdks import PACKAGES as PACKAGES

QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]


def check(base):
    import openai

    client = openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    text = check_chat(client, model)
    check_structure(client, model)
    check_several(client, model)
    check_texts(client, model)
    check_vectors(client, model)
    check_errors(client, model, text)


def check_chat(client, model):
    answer = client.chat.completions.create(model=model, messages=QUESTION, max_tokens=32, temperature=0)
    text = answer.choices[0].message.content
    assert "Paris" in text, text
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    print("openai chat:", text)

    parts, usage, finish = [], None, None
    options = {"include_usage": True}
    for chunk in client.chat.completions.create(
        model=model, messages=QUESTION, max_tokens=32, temperature=0, stream=True, stream_options=options
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            parts.append(choice.delta.content or "")
            finish = choice.finish_reason or finish
    assert "".join(parts) == text, (parts, text)
    assert usage.completion_tokens == answer.usage.completion_tokens and finish == answer.choices[0].finish_reason
    assert usage.prompt_tokens_details.cached_tokens > 0, "the same prompt again"
    print("openai stream:", len(parts), "pieces,", usage.prompt_tokens_details.cached_tokens, "tokens known")
    return text


def check_structure(client, model):
    from pydantic import BaseModel

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


def check_several(client, model):
    many = client.chat.completions.create(
        model=model, messages=QUESTION, n=3, max_tokens=8, temperature=1.5, seed=7, logprobs=True, top_logprobs=2
    )
    assert [choice.index for choice in many.choices] == [0, 1, 2]
    assert all(len(token.top_logprobs) == 2 for choice in many.choices for token in choice.logprobs.content)
    print("openai n and logprobs:", [choice.message.content for choice in many.choices])


def check_texts(client, model):
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


def check_vectors(client, model):
    vectors = client.embeddings.create(model=model, input=["a cat", "a kitten", "the stock market"])
    cat, kitten, market = [vector.embedding for vector in vectors.data]
    dot = lambda a, b: sum(x * y for x, y in zip(a, b))
    assert abs(dot(cat, cat) - 1) < 1e-3 and dot(cat, kitten) > dot(cat, market), "embeddings do not reflect the similarity of the texts"
    print("openai embeddings:", len(cat), "elements")


def check_errors(client, model, text):
    import openai

    for wrong, error in [
        ({"max_tokens": -1}, openai.BadRequestError),
        ({"extra_body": {"no_such_field": 1}}, openai.BadRequestError),
        ({"messages": [{"role": "user", "content": "word " * 200_000}]}, openai.BadRequestError),
    ]:
        try:
            client.chat.completions.create(**{"model": model, "messages": QUESTION, "max_tokens": 4, **wrong})
            raise AssertionError(f"{wrong} is taken")
        except error as refused:
            assert refused.body["message"], refused
    # Closing a stream cancels the request; the next response is unaffected.
    stream = client.chat.completions.create(model=model, messages=QUESTION, max_tokens=400, stream=True)
    next(iter(stream))
    stream.close()
    again = client.chat.completions.create(model=model, messages=QUESTION, max_tokens=32, temperature=0)
    assert again.choices[0].message.content == text
    print("openai errors and cancelled streams: as expected")
