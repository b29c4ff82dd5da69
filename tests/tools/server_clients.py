#!/usr/bin/env python3
"""Tests a server with published client packages of PyPI and npm, each in its own directory in the cache.

    python3 tests/tools/server_clients.py http://127.0.0.1:8080 [CLIENT…]

Each client is a module of clients/: `PACKAGES` lists its requirements, and `check` tests every feature that the client
supports. Prints one line per check and exits with a nonzero status at the first failure.

The served model must follow instructions and have a chat template with tools. The client `media` has no such
requirement, but needs a model that reads images or audio.
"""

import importlib
import os
import pathlib
import subprocess
import sys

import packages

# Clients that need a model that reads images or audio.
MEDIA = ["media"]
CLIENTS = ["openai", "responses", "anthropic", "ollama", "agents", "langchain", "litellm", "instructor", "llm", "lm_eval", "ai"]
# Disables telemetry and downloads, and hides the API keys of this machine.
QUIET = {
    "NO_PROXY": "127.0.0.1,localhost",
    "HF_HUB_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OPENAI_API_KEY": "none",
}


def main():
    if len(sys.argv) < 2 or not set(sys.argv[2:]) <= {*CLIENTS, *MEDIA}:
        sys.exit(__doc__)
    url = sys.argv[1].rstrip("/")
    for client in sys.argv[2:] or CLIENTS:
        python = packages.python("clients", importlib.import_module(f"clients.{client}").PACKAGES)
        check = f"import sys; from clients.{client} import check; check(sys.argv[1])"
        done = subprocess.run([python, "-c", check, url], env={**os.environ, **QUIET}, cwd=pathlib.Path(__file__).parent)
        if done.returncode != 0:
            sys.exit(f"the check of client {client} failed")


main()
