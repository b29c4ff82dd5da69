"""Installs packages of PyPI and npm for the other scripts. Each set has its own directory in the cache, created atomically."""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys


def cache():
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "llama-tests"


def directory_of(name, packages, fill):
    """Returns the directory of a set of packages. `fill` installs them if the directory is not complete."""
    directory = cache() / f"{name}-{hashlib.sha256(' '.join(packages).encode()).hexdigest()[:12]}"
    if not (directory / "complete").exists():
        fill(directory)
        (directory / "complete").touch()
    return directory


def python(name, packages):
    """Returns the Python interpreter of a virtual environment with these packages of PyPI."""

    def fill(directory):
        subprocess.run([sys.executable, "-m", "venv", "--clear", directory], check=True)
        if not packages:
            return
        pip = [directory / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *packages], check=True)

    return directory_of(name, packages, fill) / "bin" / "python"


def node_modules(name, packages):
    """Returns a directory where Node.js finds these npm packages."""

    def fill(directory):
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        (directory / "package.json").write_text('{"private": true}')
        subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", *packages], cwd=directory, check=True)

    return directory_of(name, packages, fill)
