#!/usr/bin/env python3
"""Converts a BERT sentence encoder (a directory with config.json, tokenizer.json and model.safetensors) to a GGUF file. Also records
the embeddings of a few sentences, computed in 64 bits, as the reference for `tests/embeddings.rs`.

    sentence_encoder.py DIR OUT.gguf [EXPECTED.json]

EXPECTED.json needs numpy and the `tokenizers` package, whose tokens are recorded too.
"""

import json
import math
import struct
import sys
from pathlib import Path

SENTENCES = [
    "A man is eating food.",
    "Someone is having a meal.",
    "The girl plays the violin.",
    "Die Kinder spielen im Garten; draußen schneit es!",
    "Zürich, naïve café — 東京タワー, 100 % & C++17's <tags>?",
    "supercalifragilisticexpialidocious antidisestablishmentarianism",
]

LAYER = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
MODEL = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
}


def read_safetensors(path):
    """Returns the shape and bytes of each tensor. All tensors are f32."""
    data = path.read_bytes()
    (n,) = struct.unpack_from("<Q", data)
    tensors = {}
    for name, t in json.loads(data[8 : 8 + n]).items():
        if name == "__metadata__" or t["dtype"] != "F32":
            continue
        start, end = t["data_offsets"]
        tensors[name.removeprefix("bert.")] = t["shape"], data[8 + n + start : 8 + n + end]
    return tensors


def gguf_name(name):
    base, suffix = name.rsplit(".", 1)
    if base in MODEL:
        return f"{MODEL[base]}.{suffix}"
    if base.startswith("encoder.layer."):
        _, _, layer, rest = base.split(".", 3)
        return f"blk.{layer}.{LAYER[rest]}.{suffix}"
    return None  # the pooler, unused by sentence encoders


def spelling(token):
    """Converts a token: `##` marks continuations in BERT, and a space marks word starts in GGUF."""
    if token.startswith("[") and token.endswith("]"):
        return token
    return token[2:] if token.startswith("##") else "\u2581" + token


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def value(v):
    if isinstance(v, bool):
        return struct.pack("<I?", 7, v)
    if isinstance(v, int):
        return struct.pack("<II", 4, v)
    if isinstance(v, float):
        return struct.pack("<If", 6, v)
    if isinstance(v, str):
        return struct.pack("<I", 8) + string(v)
    if isinstance(v[0], str):
        return struct.pack("<IIQ", 9, 8, len(v)) + b"".join(map(string, v))
    return struct.pack("<IIQ", 9, 5, len(v)) + struct.pack(f"<{len(v)}i", *v)


def write_gguf(path, metadata, tensors):
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))
    head += b"".join(string(k) + value(v) for k, v in metadata.items())
    offset = 0
    for name, (shape, data) in tensors.items():
        head += string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1]) + struct.pack("<IQ", 0, offset)
        offset += len(padded(data))
    with open(path, "wb") as f:
        f.write(padded(head))
        for _, data in tensors.values():
            f.write(padded(data))


def padded(data):
    return data.ljust((len(data) + 31) // 32 * 32, b"\0")


def layer_norm(x, w, name, eps):
    x = x - x.mean(-1, keepdims=True)
    x = x / ((x * x).mean(-1, keepdims=True) + eps) ** 0.5
    return x * w[name + ".weight"] + w[name + ".bias"]


def embedding(np, w, config, ids):
    """Returns the mean of the last hidden states, normalized to length 1."""
    n_head, eps = config["num_attention_heads"], config["layer_norm_eps"]
    erf = np.vectorize(math.erf)
    dense = lambda x, name: x @ w[name + ".weight"].T + w[name + ".bias"]
    heads = lambda x: x.reshape(len(ids), n_head, -1).transpose(1, 0, 2)
    x = w["embeddings.word_embeddings.weight"][ids]
    x = x + w["embeddings.position_embeddings.weight"][: len(ids)] + w["embeddings.token_type_embeddings.weight"][0]
    x = layer_norm(x, w, "embeddings.LayerNorm", eps)
    for i in range(config["num_hidden_layers"]):
        p = f"encoder.layer.{i}."
        q, k, v = (heads(dense(x, p + "attention.self." + n)) for n in ("query", "key", "value"))
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        a = (scores / scores.sum(-1, keepdims=True)) @ v
        a = dense(a.transpose(1, 0, 2).reshape(len(ids), -1), p + "attention.output.dense")
        x = layer_norm(x + a, w, p + "attention.output.LayerNorm", eps)
        h = dense(x, p + "intermediate.dense")
        h = h * 0.5 * (1 + erf(h / math.sqrt(2)))
        x = layer_norm(x + dense(h, p + "output.dense"), w, p + "output.LayerNorm", eps)
    mean = x.mean(0)
    return mean / np.linalg.norm(mean)


def main(directory, out, expected=None):
    directory = Path(directory)
    config = json.loads((directory / "config.json").read_text())
    vocab = json.loads((directory / "tokenizer.json").read_text())["model"]["vocab"]
    tokens = sorted(vocab, key=vocab.get)
    weights = read_safetensors(directory / "model.safetensors")
    special = lambda t: t in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    metadata = {
        "general.architecture": "bert",
        "bert.block_count": config["num_hidden_layers"],
        "bert.context_length": config["max_position_embeddings"],
        "bert.embedding_length": config["hidden_size"],
        "bert.feed_forward_length": config["intermediate_size"],
        "bert.attention.head_count": config["num_attention_heads"],
        "bert.attention.layer_norm_epsilon": float(config["layer_norm_eps"]),
        "bert.attention.causal": False,
        "bert.pooling_type": 1,
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.token_type_count": config["type_vocab_size"],
        "tokenizer.ggml.tokens": [spelling(t) for t in tokens],
        "tokenizer.ggml.token_type": [3 if special(t) else 1 for t in tokens],
        "tokenizer.ggml.bos_token_id": vocab["[CLS]"],
        "tokenizer.ggml.unknown_token_id": vocab["[UNK]"],
        "tokenizer.ggml.seperator_token_id": vocab["[SEP]"],
        "tokenizer.ggml.padding_token_id": vocab["[PAD]"],
        "tokenizer.ggml.mask_token_id": vocab["[MASK]"],
    }
    named = {gguf_name(n): x for n, x in weights.items() if gguf_name(n)}
    write_gguf(out, metadata, named)
    if expected is None:
        return
    import numpy as np
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.no_padding()
    wide = {n: np.frombuffer(x, dtype="<f4").reshape(shape).astype(np.float64) for n, (shape, x) in weights.items()}
    records = []
    for text in SENTENCES:
        ids = tokenizer.encode(text).ids
        vector = [float(f"{x:.6g}") for x in embedding(np, wide, config, ids)]
        records.append({"text": text, "tokens": ids, "embedding": vector})
    lines = ",\n".join(json.dumps(r, ensure_ascii=False) for r in records)
    Path(expected).write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
