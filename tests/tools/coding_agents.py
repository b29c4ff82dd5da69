#!/usr/bin/env python3
"""Runs published coding agents against a server. They are packages of npm and PyPI, each in its own directory in the cache.

    python3 tests/tools/coding_agents.py http://127.0.0.1:8080 [AGENT…]

Each agent is asked to read a file. It gets an empty home directory, no keys, and no network except the server. The agent must exit with status 0.
If it can run commands, it must have run the command of the model's tool call, so that the conversation contains the file. The served model must call
the agent's command tool with `cat secret.txt` and then answer.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import packages

NPM = ["@openai/codex@0.169.0", "@anthropic-ai/claude-code@2.1.197", "opencode-ai@1.18.33"]
PYPI = ["aider-chat==0.86.2"]
SECRET = "sesame-4c1f"
QUESTION = "Print the content of secret.txt."
# Agents send long instructions, and prefill is slow on a small machine.
SECONDS = 900


def main():
    if len(sys.argv) < 2 or not set(sys.argv[2:]) <= set(AGENTS):
        sys.exit(__doc__)
    url = sys.argv[1].rstrip("/")
    for name in sys.argv[2:] or AGENTS:
        with tempfile.TemporaryDirectory() as directory:
            ask(name, url, pathlib.Path(directory))


def ask(name, url, directory):
    home, work = directory / "home", directory / "work"
    home.mkdir()
    work.mkdir()
    (work / "secret.txt").write_text(SECRET)
    command, variables, runs_commands = AGENTS[name](url, home, work)
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home),
        "XDG_DATA_HOME": str(home),
        "XDG_CACHE_HOME": str(home),
        "NO_PROXY": "127.0.0.1,localhost",
        **variables,
    }
    done = subprocess.run(command, env=env, cwd=work, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS)
    said = done.stdout + done.stderr
    if done.returncode != 0 or (runs_commands and SECRET not in said):
        sys.exit(f"{name} failed with status {done.returncode}\n{said[-4000:]}")
    print(f"{name}: {' '.join(done.stdout.split())[-100:]}", flush=True)


def npm(file):
    """Returns the path of a file in the packages. Their install scripts were not run."""
    return packages.node_modules("agents", NPM) / "node_modules" / file


def codex(url, home, _, more=""):
    (home / "config.toml").write_text(
        'model = "any"\nmodel_provider = "local"\nmodel_context_window = 32768\n[model_providers.local]\nname = "local"\n'
        f'base_url = "{url}/v1"\nenv_key = "LOCAL_KEY"\nwire_api = "responses"\n{more}'
    )
    command = ["node", npm("@openai/codex/bin/codex.js"), "exec", "--json", "--skip-git-repo-check", "--sandbox", "read-only", QUESTION]
    return command, {"LOCAL_KEY": "none", "CODEX_HOME": str(home)}, True


def codex_mcp(url, home, work):
    """Adds an MCP server with one function, which the model calls before any command."""
    server = home / "server.py"
    server.write_text(MCP_SERVER)
    approved = 'default_tools_approval_mode = "approve"'
    more = f'[mcp_servers.sky]\ncommand = {json.dumps(sys.executable)}\nargs = [{json.dumps(str(server))}]\n{approved}\n'
    return codex(url, home, work, more)


def claude(url, *_):
    command = ["node", npm("@anthropic-ai/claude-code/cli-wrapper.cjs"), "-p", QUESTION, "--output-format", "stream-json", "--verbose", "--max-turns", "8"]
    variables = {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": "none",
        "ANTHROPIC_MODEL": "any",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "100",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    return command, variables, True


def opencode(url, _, work):
    model = {"name": "any", "limit": {"context": 32768, "output": 100}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "local",
        "options": {"baseURL": f"{url}/v1", "apiKey": "none"},
        "models": {"any": model},
    }
    config = {"provider": {"local": provider}, "model": "local/any", "small_model": "local/any", "autoupdate": False, "share": "disabled"}
    (work / "opencode.json").write_text(json.dumps(config))
    variables = {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    # The package's install script selects the program for this machine.
    package = npm("opencode-ai")
    subprocess.run(["node", "postinstall.mjs"], cwd=package, check=True, stdout=subprocess.DEVNULL)
    return [package / "bin" / "opencode.exe", "run", "-m", "local/any", QUESTION], variables, True


def aider(url, *_):
    """Has no tools: files named on the command line are sent with the question."""
    command = [packages.python("agents", PYPI).parent / "aider", "--model", "openai/any", "--message", QUESTION]
    command += ["--no-git", "--yes-always", "--no-check-update", "--analytics-disable", "--no-show-model-warnings", "secret.txt"]
    return command, {"OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": "none"}, False


# An MCP server with one function: JSON lines over standard input and output.
MCP_SERVER = f"""
import json, sys

WEATHER = {{"name": "weather", "description": "Tells the weather.", "inputSchema": {{"type": "object", "properties": {{"city": {{"type": "string"}}}}}}}}
for line in sys.stdin:
    asked = json.loads(line)
    answers = {{
        "initialize": lambda: {{
            "protocolVersion": asked["params"]["protocolVersion"],
            "capabilities": {{"tools": {{}}}},
            "serverInfo": {{"name": "sky", "version": "1"}},
        }},
        "tools/list": lambda: {{"tools": [WEATHER]}},
        "tools/call": lambda: {{"content": [{{"type": "text", "text": "{SECRET}"}}]}},
    }}
    if "id" in asked:
        result = answers.get(asked["method"], dict)()
        print(json.dumps({{"jsonrpc": "2.0", "id": asked["id"], "result": result}}), flush=True)
"""

AGENTS = {"codex": codex, "codex_mcp": codex_mcp, "claude": claude, "opencode": opencode, "aider": aider}

main()
