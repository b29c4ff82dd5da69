"""openai-agents, with chat completions and responses."""

import asyncio

PACKAGES = ["openai-agents==0.24.0"]
QUESTION = "What is the capital of France? Answer in one sentence."


def check(base):
    import openai
    from agents import OpenAIChatCompletionsModel, OpenAIResponsesModel

    for kind in [OpenAIChatCompletionsModel, OpenAIResponsesModel]:
        client = openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0)
        asyncio.run(check_model(kind(model="any", openai_client=client)))


async def check_model(model):
    await check_text(model)
    await check_functions(model)
    await check_structure(model)


async def check_text(model):
    from agents import Agent, ModelSettings, Runner

    settings = ModelSettings(temperature=0, max_tokens=400, include_usage=True)
    agent = Agent(name="Guide", instructions="You are a helpful assistant.", model=model, model_settings=settings)
    answer = await Runner.run(agent, QUESTION)
    assert "Paris" in answer.final_output and answer.context_wrapper.usage.output_tokens > 0, answer
    streamed, text = Runner.run_streamed(agent, QUESTION), ""
    async for event in streamed.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            text += event.data.delta
    assert text == streamed.final_output == answer.final_output, (text, answer.final_output)
    after = await Runner.run(agent, [*answer.to_input_list(), {"role": "user", "content": "Say it again."}])
    assert after.context_wrapper.usage.input_tokens > answer.context_wrapper.usage.input_tokens
    print("agents, whole, streams, turns:", type(model).__name__, text)


async def check_functions(model):
    from agents import Agent, ModelSettings, Runner, function_tool

    asked = []

    @function_tool
    def weather(city: str) -> str:
        """Tells the weather of a city."""
        asked.append(city)
        return f"It rains in {city}."

    settings = ModelSettings(temperature=0, max_tokens=60, tool_choice="required")
    agent = Agent(name="Guide", instructions="You are a helpful assistant.", model=model, model_settings=settings, tools=[weather])
    answer = await Runner.run(agent, "How is the weather in Paris?", max_turns=4)
    assert asked and isinstance(answer.final_output, str), answer
    n_asked = len(asked)
    streamed = Runner.run_streamed(agent, "How is the weather in Paris?", max_turns=4)
    async for _ in streamed.stream_events():
        pass
    assert asked[n_asked:] == asked[:n_asked] and streamed.final_output == answer.final_output, (asked, streamed.final_output)
    print("agents, functions:", asked, answer.final_output)


async def check_structure(model):
    from agents import Agent, ModelSettings, Runner
    from pydantic import BaseModel

    class City(BaseModel):
        name: str
        is_capital: bool

    settings = ModelSettings(temperature=0, max_tokens=100)
    agent = Agent(name="Guide", instructions="Describe cities as JSON.", model=model, model_settings=settings, output_type=City)
    answer = await Runner.run(agent, "Paris")
    assert isinstance(answer.final_output, City), answer
    print("agents, structure:", answer.final_output)
