#!/usr/bin/env python3
"""Compares logits, written by `llama logits`, with the first file.

divergence.py REFERENCE.logits OTHER.logits...

Prints a JSON line for each other file: the mean Kullback-Leibler divergence over the tokens, the top-1 agreement, and the NMSE of the logits.
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


class Plain:
    """Sums over a row without NumPy, a hundred times slower."""

    @staticmethod
    def log_probabilities(row):
        most = max(row)
        total = math.log(sum(math.exp(x - most) for x in row)) + most
        return [x - total for x in row]

    @staticmethod
    def divergence(p, q):
        return sum(math.exp(a) * (a - b) for a, b in zip(p, q))

    @staticmethod
    def top(row):
        return max(range(len(row)), key=row.__getitem__)

    @staticmethod
    def squares(want, got):
        return sum((a - b) ** 2 for a, b in zip(want, got)), sum(a * a for a in want)


class Vectors:
    """NumPy version of `Plain`."""

    def __init__(self, numpy):
        self.numpy = numpy

    def log_probabilities(self, row):
        row = self.numpy.asarray(row, self.numpy.float64)
        most = row.max()
        return row - (math.log(self.numpy.exp(row - most).sum()) + most)

    def divergence(self, p, q):
        return float((self.numpy.exp(p) * (p - q)).sum())

    def top(self, row):
        return int(row.argmax())

    def squares(self, want, got):
        want, got = (self.numpy.asarray(row, self.numpy.float64) for row in (want, got))
        return float(((want - got) ** 2).sum()), float((want**2).sum())


def arithmetic():
    try:
        import numpy
    except ImportError:
        return Plain()
    return Vectors(numpy)


def compared(sums, reference, other):
    divergence, same, error, power = 0.0, 0, 0.0, 0.0
    for want, got in zip(reference, other, strict=True):
        p, q = sums.log_probabilities(want), sums.log_probabilities(got)
        divergence += sums.divergence(p, q)
        same += sums.top(p) == sums.top(q)
        of_row, of_want = sums.squares(want, got)
        error, power = error + of_row, power + of_want
    n = len(reference)
    return {"kl": divergence / n, "same_top": same / n, "nmse": error / power}


def main(reference, *others):
    want, sums = rows(reference), arithmetic()
    for path in others:
        print(json.dumps({"logits": Path(path).stem, **compared(sums, want, rows(path))}), flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
