#!/usr/bin/env python3
"""Holds the manifests and queries of deploy/ against published schemas: packages of npm, installed into the cache.

    python3 tests/tools/manifests.py

Kinds that no package has a schema of are named, and are nothing but YAML here. Any fault ends it with a status other
than 0. Needs Node.js and npm.
"""

import hashlib
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = {
    "kubernetes-models": "5.1.0",
    "@kubernetes-models/gateway-api": "2.0.0",
    "@kubernetes-models/prometheus-operator": "6.0.0",
    "@kubernetes-models/keda": "2.0.0",
    "@prometheus-io/lezer-promql": "0.315.0",
    "yaml": "2.9.1",
}


def environment():
    """The folder with the packages, which is made whole or not at all."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "llama-tests"
    name = hashlib.sha256(json.dumps(PACKAGES).encode()).hexdigest()[:12]
    folder = cache / f"manifests-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "complete").exists():
        (folder / "package.json").write_text(json.dumps({"private": True, "dependencies": PACKAGES}))
        subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=folder, check=True)
        (folder / "complete").touch()
    return folder


def main():
    folder = environment()
    # Packages are found beside the script, wherever it is read from.
    script = folder / "manifests.mjs"
    script.write_bytes((ROOT / "tests" / "tools" / "manifests.mjs").read_bytes())
    sys.exit(subprocess.run(["node", script, ROOT / "deploy"]).returncode)


main()
