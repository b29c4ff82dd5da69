"""The package `langchain-openai`."""

import asyncio

PACKAGES = ["langchain-openai==1.7.3"]
# Connections are shared by all models and belong to one event loop.
LOOP = asyncio.new_event_loop()
QUESTION = "What is the capital of France? Answer in one sentence."


def check(base):
    from langchain_openai import ChatOpenAI

    for by_responses in [False, True]:
        told = {"base_url": f"{base}/v1", "api_key": "none", "model": "any", "temperature": 0, "max_retries": 0}
        model = ChatOpenAI(**told, max_tokens=400, use_responses_api=by_responses, stream_usage=True)
        check_text(model)
        check_structure(model)
        check_functions(model)
    check_others(base, told)


def text_of(message):
    return message.text if isinstance(message.text, str) else message.text()


def check_text(model):
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

    answer = model.invoke(QUESTION)
    text = text_of(answer)
    assert "Paris" in text and answer.usage_metadata["output_tokens"] > 0, answer
    whole = None
    for chunk in model.stream(QUESTION):
        whole = chunk if whole is None else whole + chunk
    assert text_of(whole) == text and whole.usage_metadata["output_tokens"] == answer.usage_metadata["output_tokens"], whole
    turns = [SystemMessage("Be brief."), HumanMessage(QUESTION), AIMessage(text), HumanMessage("Say it again.")]
    assert model.invoke(turns).usage_metadata["input_tokens"] > answer.usage_metadata["input_tokens"]
    several = model.batch([QUESTION, QUESTION])
    assert len(several) == 2 and all("Paris" in text_of(one) for one in several), several

    async def pieces():
        return "".join([text_of(chunk) async for chunk in model.astream(QUESTION)])

    assert LOOP.run_until_complete(pieces()) == text
    print("langchain, whole, streams, turns, several:", text)


def check_structure(model):
    from pydantic import BaseModel

    class City(BaseModel):
        """A city."""

        name: str
        is_capital: bool

    asked = "Describe the city of Paris as JSON."
    for method in ["json_schema", "function_calling"]:
        city = model.with_structured_output(City, method=method).invoke(asked)
        assert isinstance(city, City), city
        *_, city = model.with_structured_output(City, method=method).stream(asked)
        assert isinstance(city, City), city
    print("langchain, structure:", city)


def check_functions(model):
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool

    @tool
    def weather(city: str) -> str:
        """Tells the weather of a city."""
        return f"It rains in {city}."

    for choice in ["any", "weather"]:
        bound = model.bind_tools([weather], tool_choice=choice)
        asked = [HumanMessage("How is the weather in Paris?")]
        called = bound.invoke(asked)
        (call,) = called.tool_calls
        assert call["name"] == "weather" and isinstance(call["args"]["city"], str), called
        whole = None
        for chunk in bound.stream(asked):
            whole = chunk if whole is None else whole + chunk
        assert [(c["name"], c["args"]) for c in whole.tool_calls] == [("weather", call["args"])], whole
    told = ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])
    after = model.invoke([*asked, called, told])
    assert text_of(after), after
    print("langchain, functions:", call["args"], text_of(after))


def check_others(base, told):
    from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

    rated = ChatOpenAI(**told, max_tokens=4, logprobs=True, top_logprobs=2).invoke(QUESTION)
    assert len(rated.response_metadata["logprobs"]["content"][0]["top_logprobs"]) == 2, rated
    texts = OpenAI(**told, max_tokens=6)
    text = texts.invoke("One, two, three, four,")
    assert "five" in text and "".join(texts.stream("One, two, three, four,")) == text, text
    # The default token counter would download a tokenizer from OpenAI.
    vectors = OpenAIEmbeddings(base_url=told["base_url"], api_key="none", model="any", check_embedding_ctx_length=False)
    two = vectors.embed_documents(["a cat", "a kitten"])
    one = vectors.embed_query("a cat")
    assert max(abs(a - b) for a, b in zip(two[0], one)) < 1e-3, "the embedding of a text depends on the other texts of its batch"
    print("langchain, logprobs, texts, vectors:", text, len(one))
