#!/usr/bin/env python3
"""Validates the manifests and queries of deploy/ against published schemas, which are npm packages installed into the cache.

    python3 tests/tools/manifests.py

Kinds without a published schema are listed and only parsed as YAML. Exits with a nonzero status on any error. Needs
Node.js and npm.
"""

import pathlib
import subprocess
import sys

import packages

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = {
    "kubernetes-models": "5.1.0",
    "@kubernetes-models/gateway-api": "2.0.0",
    "@kubernetes-models/prometheus-operator": "6.0.0",
    "@kubernetes-models/keda": "2.0.0",
    "@prometheus-io/lezer-promql": "0.315.0",
    "yaml": "2.9.1",
}


def main():
    directory = packages.node_modules("manifests", [f"{name}@{version}" for name, version in PACKAGES.items()])
    # Node.js resolves packages relative to the script.
    script = directory / "manifests.mjs"
    script.write_bytes((ROOT / "tests" / "tools" / "manifests.mjs").read_bytes())
    sys.exit(subprocess.run(["node", script, ROOT / "deploy"]).returncode)


main()
