"""The JavaScript package `ai`, run by Node.js with ai.mjs in this directory."""

import pathlib
import subprocess

import packages

PACKAGES = []
MODULES = ["ai@6.0.326", "@ai-sdk/openai-compatible@2.0.92", "zod@4.6.7"]


def check(base):
    directory = packages.node_modules("clients", MODULES)
    # Node.js resolves modules from the script's directory, or from the working directory for a script on standard
    # input.
    with open(pathlib.Path(__file__).with_suffix(".mjs"), encoding="utf-8") as script:
        subprocess.run(["node", "--input-type=module", "-", base], stdin=script, cwd=directory, check=True)
