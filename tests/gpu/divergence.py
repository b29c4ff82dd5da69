#!/usr/bin/env python3
"""Compares logits, written by `llama logits`, with the first file.

divergence.py REFERENCE.logits OTHER.logits...

Prints a JSON line for each other file: the mean Kullback-Leibler divergence of its distributions over the tokens, the share of positions with
the same most likely token, and the normalized mean squared error of the logits.
"""

import array
import json
import math
import sys
from pathlib import Path


def rows(path):
    data = Path(path).read_bytes()
    n_tokens, n_vocab = (int.from_bytes(data[at : at + 4], "little") for at in (0, 4))
    values = array.array("f", data[8 + 4 * n_tokens :])
    if len(values) != n_tokens * n_vocab:
        sys.exit(f"{path}: expected {n_tokens} x {n_vocab} logits, found {len(values)}")
    return [values[i * n_vocab : (i + 1) * n_vocab] for i in range(n_tokens)]


def log_probabilities(row):
    most = max(row)
    total = math.log(sum(math.exp(x - most) for x in row)) + most
    return [x - total for x in row]


def compared(reference, other):
    divergence, same, error, power = 0.0, 0, 0.0, 0.0
    for want, got in zip(reference, other, strict=True):
        p, q = log_probabilities(want), log_probabilities(got)
        divergence += sum(math.exp(a) * (a - b) for a, b in zip(p, q))
        same += max(range(len(p)), key=p.__getitem__) == max(range(len(q)), key=q.__getitem__)
        error += sum((a - b) ** 2 for a, b in zip(want, got))
        power += sum(a * a for a in want)
    n = len(reference)
    return {"kl": divergence / n, "same_top": same / n, "nmse": error / power}


def main(reference, *others):
    want = rows(reference)
    for path in others:
        print(json.dumps({"logits": Path(path).stem, **compared(want, rows(path))}), flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
