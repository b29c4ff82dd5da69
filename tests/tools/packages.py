"""Environments of Python packages for tests: made once below the user's cache, whole or not at all."""

import hashlib
import os
import pathlib
import subprocess
import sys


def cache():
    """The folder for what tests fetch."""
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "llama-tests"


def environment(kind, packages):
    """The interpreter of the environment that has these packages; another list of them is another environment."""
    name = hashlib.sha256(" ".join(packages).encode()).hexdigest()[:12]
    folder = cache() / f"{kind}-{name}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages], check=True)
        (folder / "complete").touch()
    return python
