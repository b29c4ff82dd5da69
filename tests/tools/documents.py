#!/usr/bin/env python3
"""Generates parts of README.md and docs/: tables, the Rust example, and the picture of a terminal.

    documents.py           rewrite the parts that are out of date
    documents.py --check   print them and exit with status 1
"""

import json
import sys
from pathlib import Path

sys.dont_write_bytecode = True
import terminal  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = json.loads((ROOT / "docs/benchmarks.json").read_text())
HEADER = """| Model | Prompt, tok/s | llama.cpp | Ratio | Decode, tok/s | llama.cpp | Ratio |
|---|---:|---:|---:|---:|---:|---:|
"""
COLUMNS = "model prompt prompt_llama_cpp prompt_ratio decode decode_llama_cpp decode_ratio".split()


def table(rows):
    return HEADER + "".join(f"| {' | '.join(row[column] for column in COLUMNS)} |\n" for row in rows)


def speed():
    """Returns the table of README: some models on one machine."""
    chosen = BENCHMARKS["readme"]
    machine = next(m for m in BENCHMARKS["machines"] if m["id"] == chosen["machine"])
    rows = [row for row in machine["rows"] if row["model"] in chosen["models"]]
    return f"{machine['machine']}, {machine['date']}, llama.cpp {BENCHMARKS['llama_cpp']}:\n\n{table(rows)}"


def machines():
    """Returns the tables of docs/benchmarks.md: every machine with its command."""
    return "\n".join(
        f"### {m['machine']}\n\n{m['date']}: `llama bench -m MODEL {m['options']} "
        f"--compare 'llama-bench -m MODEL {m['peer_options']}'`\n\n{table(m['rows'])}"
        for m in BENCHMARKS["machines"]
    )


def gpus(path=ROOT / "docs/gpu.json"):
    """Returns the tables of docs/benchmarks.md for a GPU: speeds, and kernels by their share of the time."""
    if not path.exists():
        return "No NVIDIA GPU has been measured yet.\n"
    report = json.loads(path.read_text())
    gpu = report["gpu"]
    text = f"### {gpu['name']}\n\n{report['date']}, driver {gpu['driver_version']}, CUDA {gpu['toolkit']}. "
    text += "Measured limits: " + ", ".join(f"{k} {v:g}" for line in report.get("ceilings", []) for k, v in line.items()) + ".\n\n"
    text += "| Model | Test | Depth | Sequences | tok/s | Ratio to llama.cpp |\n|---|---|---:|---:|---:|---:|\n"
    for row in report.get("bench", []):
        test = f"prompt of {row['n_prompt']}" if row["n_prompt"] else f"decode of {row['n_gen']}"
        ratio = f"{row['median_ratio']:.2f}" if row.get("median_ratio") else "-"
        text += f"| {row['model']} | {test} | {row['n_depth']} | {row['n_parallel']} | {row['median_ts']:.1f} | {ratio} |\n"
    text += "\n| Model | Kernel | Launches | Median, µs | GB/s | TFLOP/s |\n|---|---|---:|---:|---:|---:|\n"
    number = lambda value: f"{value:.1f}" if value else "-"
    for k in sorted(report.get("kernels", []), key=lambda k: -k["us_total"])[:30]:
        rates = f"{number(k['gb_s'])} | {number(k['tflops'])}"
        text += f"| {k['model']} | {k['kernel']} | {k['launches']} | {k['us_median']:.1f} | {rates} |\n"
    return text


def example():
    """Returns the first example in the documentation of the crate `llama`, which is a doctest, without its hidden lines."""
    lines = (ROOT / "llama/src/lib.rs").read_text().splitlines()
    fences = [i for i, line in enumerate(lines) if line.startswith("//! ```")]
    body = [line[4:] for line in lines[fences[0] + 1 : fences[1]] if not line.startswith("//! # ")]
    return "\n".join(["```rust", *body, "```", ""])


def replaced(text, part, content):
    """Returns a document with the lines between the two markers of `part` replaced."""
    begin = text.index("\n", text.index(f"<!-- {part}: generated")) + 1
    end = text.index(f"<!-- end of {part} -->", begin)
    return text[:begin] + content + text[end:]


def expected():
    """Yields the path and the expected text of every file with generated parts."""
    readme = ROOT / "README.md"
    yield readme, replaced(replaced(readme.read_text(), "speed", speed()), "example", example())
    benchmarks = ROOT / "docs/benchmarks.md"
    yield benchmarks, replaced(replaced(benchmarks.read_text(), "machines", machines()), "gpus", gpus())
    yield ROOT / "docs/terminal.svg", terminal.render(ROOT / "docs/terminal.cast")


def main(arguments):
    stale = [(path, text) for path, text in expected() if not path.exists() or path.read_text() != text]
    if arguments == ["--check"]:
        if stale:
            names = ", ".join(str(path.relative_to(ROOT)) for path, _ in stale)
            sys.exit(f"out of date: {names}; run tests/tools/documents.py")
    elif arguments:
        sys.exit(__doc__)
    for path, text in stale:
        path.write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
