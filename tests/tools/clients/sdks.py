"""The packages that the makers of the interfaces publish: one environment for all of them."""

PACKAGES = ["openai==3.54.0", "anthropic==2.12.0", "ollama==0.6.3", "pydantic==2.*"]
