#!/usr/bin/env python3
"""Runs tiny random checkpoints of `transformers` in place, and compares the results with those of `transformers` in 64 bits.

    run_checkpoints.py PROGRAM [FAMILY]... [--type TYPE] [--bound NMSE]

PROGRAM is the binary `llama`. FAMILY is a family of `oracle.py`; the default is all that the program has a mapping for. The script prints the
normalized mean squared error of `PROGRAM logits -m DIR` for each family, and fails if one exceeds the bound. With --type bf16 or f16, the weights of
the checkpoint have this type.

Needs: pip install torch transformers numpy (about 5 GB with torch's libraries; a CPU is enough).
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import oracle
import torch

SETTINGS = "--precision exact --ctk f32 --ctv f32 -t 1".split()
# Message of the program for families without a mapping.
UNKNOWN = "no architecture reads checkpoints of class"


def read(path):
    """Reads the tokens and results of a file."""
    data = path.read_bytes()
    n_tokens, width = np.frombuffer(data[:8], "<u4")
    tokens = np.frombuffer(data[8 : 8 + 4 * n_tokens], "<i4")
    return tokens, np.frombuffer(data[8 + 4 * n_tokens :], "<f4").reshape(n_tokens, width).astype(np.float64)


def with_type(checkpoint, family, dtype, logits):
    """Converts the weights of a checkpoint to a type, and records the results again."""
    kind = oracle.kind_of(family, oracle.configuration(family))
    kind.from_pretrained(checkpoint, dtype=dtype).save_pretrained(checkpoint)
    exact = kind.from_pretrained(checkpoint, attn_implementation="eager", dtype=torch.float64).eval()
    exact.config._experts_implementation = "eager"
    oracle.record(exact, exact.config.vocab_size, family in oracle.ENCODERS, logits)


def error_of(program, family, out, dtype):
    """Returns the error of a family; None if the program has no mapping for it."""
    checkpoint = oracle.make(family, out, {})
    logits = out / f"{family}.logits"
    if dtype is not None:
        with_type(checkpoint, family, dtype, logits)
    tokens, expected = read(logits)
    found = out / "found"
    command = [program, "logits", "-m", checkpoint, "-o", found, "--tokens", ",".join(map(str, tokens)), *SETTINGS]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        if UNKNOWN in done.stderr:
            return None
        raise ValueError(done.stderr.strip().replace(f"{checkpoint}/", ""))
    _, values = read(found)
    return ((values - expected) ** 2).sum() / (expected**2).sum()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path, metavar="PROGRAM")
    parser.add_argument("families", nargs="*", metavar="FAMILY")
    parser.add_argument("--type", choices=["bf16", "f16"], help="type of the weights [default: f32]")
    parser.add_argument("--bound", type=float, default=1e-9, metavar="NMSE")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16, None: None}[args.type]
    failed, n_run = [], 0
    for family in args.families or oracle.FAMILIES:
        with tempfile.TemporaryDirectory() as out:
            try:
                error = error_of(args.program.resolve(), family, Path(out), dtype)
            except Exception as e:
                print(f"{family}: {type(e).__name__}: {e}", flush=True)
                failed.append(family)
                continue
        if error is None:
            print(f"{family}: no mapping", flush=True)
            failed += [family] if args.families else []
            continue
        n_run += 1
        print(f"{family}: {error:.1e}", flush=True)
        if not error < args.bound:
            failed.append(family)
    print(f"{n_run} families in place")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
