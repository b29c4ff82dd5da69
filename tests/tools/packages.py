"""Packages of registries for the scripts beside this one, each set of them in a folder of its own in the cache, made whole or not at all."""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys


def cache():
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "llama-tests"


def folder_of(name, packages, fill):
    """The folder of these packages, which `fill` has filled."""
    folder = cache() / f"{name}-{hashlib.sha256(' '.join(packages).encode()).hexdigest()[:12]}"
    if not (folder / "complete").exists():
        fill(folder)
        (folder / "complete").touch()
    return folder


def python(name, packages):
    """The interpreter of a virtual environment with packages of PyPI."""

    def fill(folder):
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        if not packages:
            return
        pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *packages], check=True)

    return folder_of(name, packages, fill) / "bin" / "python"


def node_modules(name, packages):
    """A folder in which Node.js finds packages of npm."""

    def fill(folder):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "package.json").write_text('{"private": true}')
        subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", *packages], cwd=folder, check=True)

    return folder_of(name, packages, fill)
