"""The package `ai` for JavaScript, by Node.js: ai.mjs beside this file."""

import pathlib
import subprocess

import packages

PACKAGES = []
MODULES = ["ai@6.0.326", "@ai-sdk/openai-compatible@2.0.92", "zod@4.6.7"]


def check(base):
    folder = packages.node_modules("clients", MODULES)
    # Node.js finds modules from where a script lies, or from the working directory if it is read from the standard input.
    with open(pathlib.Path(__file__).with_suffix(".mjs"), encoding="utf-8") as script:
        subprocess.run(["node", "--input-type=module", "-", base], stdin=script, cwd=folder, check=True)
