#!/usr/bin/env python3
"""Records tokens of PLaMo-2's published tokenizer for hostile texts, with a small vocabulary.

    record_plamo2.py tokenization_plamo.py OUT.gguf

The first file is published with the model. It needs numpy; numba and transformers are replaced by stubs. The vocabulary has overlapping tokens,
scores with equal sums, NaN scores, and a token for each byte. The script also writes OUT.gguf.inp and OUT.gguf.out, in the format that
tests/data/vocabs/README.md describes.
"""

import importlib.util
import math
import random
import struct
import sys
import types

SEPARATOR = "\n__ggml_vocab_test__\n"
UNKNOWN, CONTROL, NORMAL, BYTE = 2, 3, 1, 6


def published(path):
    """Returns the encoder class of the published file."""
    numba = types.ModuleType("numba")
    numba.njit = lambda function: function
    numba.core = types.ModuleType("numba.core")
    numba.core.types = types.SimpleNamespace(int64=None, int32=None)
    numba.typed = types.ModuleType("numba.typed")
    numba.typed.Dict = type("Dict", (dict,), {"empty": classmethod(lambda cls, **_: cls()), "__class_getitem__": classmethod(lambda cls, _: cls)})
    numba.typed.List = list
    transformers = types.ModuleType("transformers")
    transformers.tokenization_utils = types.ModuleType("transformers.tokenization_utils")
    transformers.tokenization_utils.PreTrainedTokenizer = object
    transformers.utils = types.ModuleType("transformers.utils")
    transformers.utils.logging = types.SimpleNamespace(get_logger=lambda name: None)
    for module in [numba, numba.core, numba.typed, transformers, transformers.tokenization_utils, transformers.utils]:
        sys.modules[module.__name__] = module
    spec = importlib.util.spec_from_file_location("published", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.AhoCorasick


def vocabulary():
    """Returns rows of text, score and type."""
    rows = [("<|plamo:unk|>", 0.0, UNKNOWN), ("<|plamo:bos|>", 0.0, CONTROL), ("<|plamo:eos|>", 0.0, CONTROL), ("<|plamo:pad|>", 0.0, CONTROL)]
    rows += [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
    rng = random.Random(2)
    # Scores are multiples of 1/8: exact in every float format, with many equal sums.
    texts = ["a", "b", "c", " ", "  ", "    ", "\n", "\n\n", "the", " the", "he", "ther", "there", "re", "in", "ing", "thing", "nothing", "not", "é", "e", "\u0301", "e\u0301",
             "語", "日本", "日本語", "本語", "です", "でした", "した", "た", "0", "1", "00", "000", "👩", "👩\u200d👧", "\u200d", "<0x", "<0x41", "0x", "|>", "<|", "plamo", ":eos", "ab", "ba",
             "aba", "abab", "bab", "aa", "aaa", "aaaa", "aaaaaaaa", "\ufffd", "\u3000", "x" * 40]
    for text in texts:
        rows.append((text, -rng.randrange(8, 96) / 8, NORMAL))
    rows += [("never", -math.inf, NORMAL), ("nan", math.nan, NORMAL), ("rich", 3.5, NORMAL), ("poor", -1999.5, NORMAL), ("beggar", -2000.5, NORMAL)]
    return rows


def hostile_texts(rows):
    texts = ["", " ", "a", "the thing is nothing there", "nothing\n\n\nthere", "日本語でした。", "e\u0301 é e", "👩\u200d👧👩\u200d", "<0x41>", "<|plamo :eos|", "x" * 39, "x" * 85,
             "never nan rich poor beggar", "\ufeffabc", "abc\ufeff", "\u0000\u0001\u007f\u0080", "\u07ff\u0800\uffff\U00010000\U0010ffff", "\ufffd\ufffe", "\r\n\t\u0085\u2028", "a" * 300,
             "ab" * 150 + "a", " " * 33 + "x", "\u202eabc\u202c", "A\u030a\u0327", "ﷺ ﬁ", "0000000", "\u3000語"]
    rng = random.Random(3)
    pieces = [text for text, _, kind in rows if kind == NORMAL] + ["z", "ß", "字", "😀", "\u0300", "\u2028", "\t", "ａ"]
    for n in range(160):
        texts.append("".join(rng.choice(pieces) for _ in range(1 + n % 23)))
    for n in range(80):
        texts.append("".join(chr(rng.choice([rng.randrange(1, 0x80), rng.randrange(0x80, 0x3000), rng.randrange(0x3000, 0xd800), rng.randrange(0xe000, 0x110000)])) for _ in range(1 + n % 17)))
    return [text for text in texts if SEPARATOR.strip() not in text]


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def gguf(rows):
    """Writes a GGUF file without tensors."""
    def array(kind, items):
        return struct.pack("<IIQ", 9, kind, len(items)) + b"".join(items)

    keys = {
        "general.architecture": struct.pack("<I", 8) + string("plamo2"),
        "tokenizer.ggml.model": struct.pack("<I", 8) + string("plamo2"),
        "tokenizer.ggml.tokens": array(8, [string(text) for text, _, _ in rows]),
        "tokenizer.ggml.scores": array(6, [struct.pack("<f", score) for _, score, _ in rows]),
        "tokenizer.ggml.token_type": array(5, [struct.pack("<i", kind) for _, _, kind in rows]),
    }
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys))
    return head + b"".join(string(name) + value for name, value in keys.items())


def main():
    script, out = sys.argv[1:]
    rows = vocabulary()
    tokenizer = published(script)()
    # Special tokens are removed before this tokenizer runs, so it never matches them.
    tokenizer.build([(text, score if kind == NORMAL else math.nan, "BYTE" if kind == BYTE else "NORMAL") for text, score, kind in rows])
    texts = hostile_texts(rows)
    lines = [" ".join(str(id) for id in tokenizer.encode(text)) for text in texts]
    with open(out, "wb") as file:
        file.write(gguf(rows))
    with open(out + ".inp", "w", newline="", encoding="utf-8") as file:
        file.write(SEPARATOR.join(texts))
    with open(out + ".out", "w", newline="") as file:
        file.write("\n".join(lines))
    print(len(texts), "texts")


main()
