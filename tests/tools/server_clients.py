#!/usr/bin/env python3
"""Speaks to a server with the client programs that people have: packages of PyPI and npm, each in a folder of its own in the cache.

    python3 tests/tools/server_clients.py http://127.0.0.1:8080 [CLIENT…]

Each client is a module of clients/: `PACKAGES` are what it needs, and `check` asks all that the client can. Prints a line for each check; any that
fails ends it with a status other than 0. The server has to serve a model that follows instructions, with a template that takes functions.
"""

import importlib
import os
import pathlib
import subprocess
import sys

import packages

CLIENTS = ["openai", "responses", "anthropic", "ollama", "agents", "langchain", "litellm", "instructor", "llm", "lm_eval", "ai"]
# Nothing is told to anybody, nothing is fetched, and no key of the machine is used.
QUIET = {
    "NO_PROXY": "127.0.0.1,localhost",
    "HF_HUB_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OPENAI_API_KEY": "none",
}


def main():
    if len(sys.argv) < 2 or not set(sys.argv[2:]) <= set(CLIENTS):
        sys.exit(__doc__)
    url = sys.argv[1].rstrip("/")
    for client in sys.argv[2:] or CLIENTS:
        python = packages.python("clients", importlib.import_module(f"clients.{client}").PACKAGES)
        check = f"import sys; from clients.{client} import check; check(sys.argv[1])"
        done = subprocess.run([python, "-c", check, url], env={**os.environ, **QUIET}, cwd=pathlib.Path(__file__).parent)
        if done.returncode != 0:
            sys.exit(f"{client} is not served")


main()
