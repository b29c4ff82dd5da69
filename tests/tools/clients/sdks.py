"""The packages of the API vendors, in one virtual environment."""

PACKAGES = ["openai==3.54.0", "anthropic==2.12.0", "ollama==0.6.3", "pydantic==2.*"]
