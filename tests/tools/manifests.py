#!/usr/bin/env python3
"""Holds the manifests and queries of deploy/ against published schemas: packages of npm, installed into the cache.

    python3 tests/tools/manifests.py

Kinds that no package has a schema of are named, and are nothing but YAML here. Any fault ends it with a status other
than 0. Needs Node.js and npm.
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
    folder = packages.node_modules("manifests", [f"{name}@{version}" for name, version in PACKAGES.items()])
    # Packages are found beside the script, wherever it is read from.
    script = folder / "manifests.mjs"
    script.write_bytes((ROOT / "tests" / "tools" / "manifests.mjs").read_bytes())
    sys.exit(subprocess.run(["node", script, ROOT / "deploy"]).returncode)


main()
