#!/usr/bin/env python3
"""Reduces a vocabulary to the tokens that some texts can use, and renumbers them.

    reduce_vocabulary.py IN.gguf OUT.gguf

IN.gguf.inp holds texts separated by a line `__ggml_vocab_test__`, IN.gguf.out a line of token ids for each. Every
tokenizer only looks up substrings of the text. A token is kept if it is a substring, if a key names it, or if it is
recorded. Tokens of special types (control, user defined, byte, unknown) are kept, too. A merge is kept if its result
is a substring. Order, types, scores and ranks do not change, so the recorded results change only in their ids.
"""

import struct
import sys
import unicodedata
from pathlib import Path

FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
NORMAL, UNUSED = 1, 5
SEPARATOR = "\n__ggml_vocab_test__\n"


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, format):
        values = struct.unpack_from("<" + format, self.data, self.at)
        self.at += struct.calcsize("<" + format)
        return values if len(values) > 1 else values[0]

    def string(self):
        n = self.take("Q")
        self.at += n
        return self.data[self.at - n : self.at]

    def value(self, type):
        """Reads a value; an array is a pair of its type and its elements."""
        if type == STRING:
            return self.string()
        if type == ARRAY:
            element, n = self.take("IQ")
            return element, [self.value(element) for _ in range(n)]
        return self.take(FORMATS[type])


def read(path):
    """Returns the keys in file order, with types and values."""
    reader = Reader(path.read_bytes())
    _, _, n_tensors, n_keys = reader.take("IIQQ")
    assert n_tensors == 0, "a vocabulary without weights"
    keys = {}
    for _ in range(n_keys):
        key = reader.string().decode()
        type = reader.take("I")
        keys[key] = type, reader.value(type)
    return keys


def encode(type, value):
    if type == STRING:
        return struct.pack("<Q", len(value)) + value
    if type == ARRAY:
        element, values = value
        return struct.pack("<IQ", element, len(values)) + b"".join(encode(element, v) for v in values)
    return struct.pack("<" + FORMATS[type], value)


def write(path, keys):
    data = struct.pack("<4sIQQ", b"GGUF", 3, 0, len(keys))
    for key, (type, value) in keys.items():
        data += encode(STRING, key.encode()) + struct.pack("<I", type) + encode(type, value)
    path.write_bytes(data)


def byte_of_character():
    """Returns the alphabet of GPT-2: a printable character for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {**{chr(b): b for b in printable}, **{chr(256 + i): b for i, b in enumerate(others)}}


BYTES = byte_of_character()


class Parts:
    """Tests whether a string is a substring of a text."""

    def __init__(self, model, texts):
        self.is_byte_level = model == "gpt2"
        joined = "\0".join(texts)
        forms = [joined]
        if model == "bert":
            lower = unicodedata.normalize("NFD", joined.lower())
            forms += [joined.lower(), lower, "".join(c for c in lower if unicodedata.category(c) != "Mn")]
        # Some tokenizers prepend a space to the text.
        self.forms = [("\0 " + form.replace("\0", "\0 ") + "\0" + form).encode() for form in forms]

    def hold(self, token):
        text = token.decode()
        if self.is_byte_level:
            part = bytes(BYTES[c] for c in text) if all(c in BYTES for c in text) else token
        else:
            # SentencePiece writes spaces as U+2581; every word of BERT starts with one.
            part = text.replace("\u2581", " ").lstrip().encode() if text.strip("\u2581") else b" "
        return any(part in form for form in self.forms)


def reduce(keys, texts, recorded):
    """Returns the reduced keys and the old ids of the kept tokens."""
    get = lambda name: keys.get("tokenizer.ggml." + name, (0, (0, [])))[1]
    tokens, types = get("tokens")[1], get("token_type")[1]
    named = {value for key, (_, value) in keys.items() if key.endswith("_token_id")}
    named.update(id for line in recorded for id in line)
    parts = Parts(get("model").decode(), texts)
    is_special = lambda id: types[id] not in (NORMAL, UNUSED)
    kept = [id for id in range(len(tokens)) if id in named or is_special(id) or parts.hold(tokens[id])]
    new_id = {old: new for new, old in enumerate(kept)}
    reduced = {}
    for key, (type, value) in keys.items():
        if key.endswith("_token_id"):
            value = new_id[value]
        elif key == "tokenizer.ggml.merges":
            value = value[0], [merge for merge in value[1] if parts.hold(b"".join(merge.split(b" ")))]
        elif type == ARRAY and len(value[1]) == len(tokens):
            value = value[0], [value[1][id] for id in kept]
        elif key.endswith(".vocab_size"):
            value = len(kept)
        reduced[key] = type, value
    return reduced, new_id


def main(source, target):
    source, target = Path(source), Path(target)
    inp = Path(f"{source}.inp").read_bytes().decode()
    recorded = [[int(id) for id in line.split()] for line in Path(f"{source}.out").read_text().splitlines()]
    keys, new_id = reduce(read(source), inp.split(SEPARATOR), recorded)
    write(target, keys)
    Path(f"{target}.inp").write_bytes(inp.encode())
    lines = ["".join(f" {new_id[id]}" for id in line) + "\n" for line in recorded]
    Path(f"{target}.out").write_text("".join(lines))
    print(f"{target.name}: {len(new_id)} tokens, {target.stat().st_size} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
