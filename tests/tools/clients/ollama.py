"""The package `ollama`."""

import json

from .sdks import PACKAGES as PACKAGES


def check(base):
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
        raise AssertionError("an invalid schema was accepted")
    except ollama.ResponseError as refused:
        assert refused.status_code == 400 and refused.error, refused
    print("ollama chats, streams, structure, vectors, models:", text)
