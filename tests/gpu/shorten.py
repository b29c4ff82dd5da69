#!/usr/bin/env python3
"""Writes a GGUF file with the first layers of a model. A token embedding in Q8_0 is converted to Q4_0.

shorten.py MODEL.gguf OUT.gguf N_LAYERS
"""

import re
import struct
import sys

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY, U32 = 8, 9, 4
Q4_0, Q8_0 = 2, 8


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, n):
        self.at += n
        return self.data[self.at - n : self.at]

    def number(self, n):
        return int.from_bytes(self.take(n), "little")

    def string(self):
        return self.take(self.number(8))

    def skip(self, ty):
        if ty == STRING:
            self.string()
        elif ty == ARRAY:
            ty, n = self.number(4), self.number(8)
            for _ in range(n):
                self.skip(ty)
        else:
            self.take(SIZES[ty])


def q4_0_of_q8_0(data):
    """Converts blocks of 32 values: a scale (f16) and bytes to a scale and 4-bit integers around 8."""
    out = bytearray()
    for d, *values in struct.iter_unpack("<e32b", data):
        most = max(values, key=abs)
        inverse = -8 / most if most else 0.0
        q = [min(15, int(v * inverse + 8.5)) for v in values]
        out += struct.pack("<e", d * most / -8)
        out += bytes(low | high << 4 for low, high in zip(q[:16], q[16:]))
    return bytes(out)


def padded(data, alignment):
    return data + bytes(-len(data) % alignment)


def main(source, out, n_layers):
    r = Reader(open(source, "rb").read())
    head, n_tensors, n_values = r.take(8), r.number(8), r.number(8)
    values, alignment = [], 32
    for _ in range(n_values):
        start, name, ty = r.at, r.string(), r.number(4)
        at = r.at
        r.skip(ty)
        value = r.data[start : r.at]
        if name == b"general.alignment":
            alignment = int.from_bytes(r.data[at : r.at], "little")
        if name.endswith(b".block_count") and ty == U32:
            value = r.data[start:at] + struct.pack("<I", n_layers)
        values.append(value)
    tensors = []
    for _ in range(n_tensors):
        start, name = r.at, r.string()
        r.take(8 * r.number(4))
        shape, ty = r.data[start : r.at], r.number(4)
        tensors.append((name, shape, ty, r.number(8)))
    begin = -(-r.at // alignment) * alignment
    starts = sorted(offset for *_, offset in tensors) + [len(r.data) - begin]
    after = dict(zip(starts, starts[1:]))
    kept, body = b"", b""
    layer = lambda name: re.match(rb"blk\.(\d+)\.", name)
    tensors = [t for t in tensors if not layer(t[0]) or int(layer(t[0])[1]) < n_layers]
    for name, shape, ty, offset in tensors:
        weights = r.data[begin + offset : begin + after[offset]]
        if name == b"token_embd.weight" and ty == Q8_0:
            ty, weights = Q4_0, q4_0_of_q8_0(weights[: len(weights) // 34 * 34])
        kept += shape + struct.pack("<IQ", ty, len(body))
        body = padded(body + weights, alignment)
    header = head + struct.pack("<QQ", len(tensors), n_values) + b"".join(values) + kept
    with open(out, "wb") as file:
        file.write(padded(header, alignment) + body)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
