"""Instructor: structured output in every mode."""

PACKAGES = ["instructor==1.17.0"]
ASKED = {"model": "any", "temperature": 0, "max_tokens": 200, "max_retries": 0}
SAID = [{"role": "user", "content": "Paris is the capital of France. Describe the city of Paris as JSON."}]


def check(base):
    import instructor
    import openai
    from pydantic import BaseModel, ConfigDict, Field

    class City(BaseModel):
        """A city."""

        # The schema limits lengths and properties, because a small model may not stop.
        model_config = ConfigDict(extra="forbid")
        name: str = Field(max_length=40)
        is_capital: bool

    client = openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0)
    modes = instructor.Mode
    for mode in [modes.TOOLS, modes.TOOLS_STRICT, modes.JSON_SCHEMA]:
        of_mode = instructor.from_openai(client, mode=mode)
        city = of_mode.chat.completions.create(**ASKED, messages=SAID, response_model=City)
        assert isinstance(city, City), city
        *_, last = of_mode.chat.completions.create_partial(**ASKED, messages=SAID, response_model=City)
        # Partial responses use a schema with a different name, so the content may differ.
        assert isinstance(last.name, str) and isinstance(last.is_capital, bool), last
        answer, raw = of_mode.chat.completions.create_with_completion(**ASKED, messages=SAID, response_model=City)
        assert isinstance(answer, City) and raw.usage.completion_tokens > 0, raw
        print("instructor, structured output, unstreamed and streamed:", mode, city)
