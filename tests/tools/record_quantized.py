#!/usr/bin/env python3
"""Writes tiny checkpoints in the formats of GPTQ, AWQ, and NVFP4, with their values as 32-bit floats, for the tests of
`llama convert`.

    record_quantized.py OUT

Writes OUT/NAME with a quantized checkpoint, and OUT/NAME/dense with its values. The values are computed from random
codes, zero points, and scales before packing, so that no decoder is involved.

Needs: pip install numpy
"""

import json
import struct
import sys
from pathlib import Path

import numpy as np

N_VOCAB, GROUP = 16, 32
CONFIG = dict(architectures=["LlamaForCausalLM"], num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4, intermediate_size=64,
              max_position_embeddings=64, rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=False)
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
# Column of each position in an AWQ word.
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
TYPES = {np.dtype("<f4"): "F32", np.dtype("<f2"): "F16", np.dtype("<i4"): "I32", np.dtype("u1"): "U8"}


class Fp8(np.ndarray):
    """Returns the bytes of E4M3 floats."""


def write(directory, config, tensors):
    directory.mkdir(parents=True, exist_ok=True)
    header, at = {}, 0
    for name, array in tensors.items():
        kind = "F8_E4M3" if isinstance(array, Fp8) else TYPES[array.dtype]
        header[name] = dict(dtype=kind, shape=list(array.shape), data_offsets=[at, at + array.nbytes])
        at += array.nbytes
    header = json.dumps(header).encode()
    header += b" " * (-len(header) % 8)
    data = b"".join(np.ascontiguousarray(array).tobytes() for array in tensors.values())
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data)
    (directory / "config.json").write_text(json.dumps(config))
    vocab = {f"t{i}": i for i in range(N_VOCAB)}
    (directory / "tokenizer.json").write_text(json.dumps(dict(added_tokens=[], model=dict(type="BPE", vocab=vocab, merges=[]))))


def packed(codes, axis, bits, order=None):
    """Packs adjacent codes along an axis into words, the first in the lowest bits, or at the position of `order`."""
    codes = np.moveaxis(codes, axis, -1)
    per_word = 32 // bits
    codes = codes.reshape(*codes.shape[:-1], -1, per_word).astype(np.uint64)
    codes = codes[..., order or list(range(per_word))]
    words = sum(codes[..., i] << np.uint64(bits * i) for i in range(per_word))
    return np.moveaxis(words.astype(np.uint32).view(np.int32), -1, axis)


def scaled(rng, shape):
    return (rng.uniform(0.5, 1.5, shape) * 0.02).astype(np.float16)


def gptq(bits, symmetric, act_order, version=1):
    def quantize(rng, name, rows, columns):
        n_groups, half = columns // GROUP, 1 << (bits - 1)
        q = rng.integers(0, 1 << bits, (rows, columns))
        zeros = np.full((n_groups, rows), half) if symmetric else rng.integers(1, 1 << bits, (n_groups, rows))
        scales = scaled(rng, (n_groups, rows))
        groups = np.arange(columns) // GROUP
        groups = rng.permutation(groups) if act_order else groups
        values = (q - zeros[groups].T).astype(np.float32) * scales[groups].T.astype(np.float32)
        parts = {"qweight": packed(q.T, 0, bits), "qzeros": packed(zeros - (version == 1), 1, bits), "scales": scales,
                 "g_idx": groups.astype(np.int32)}
        return values, {f"{name}.{part}": array for part, array in parts.items()}

    config = dict(quant_method="gptq", bits=bits, group_size=GROUP, desc_act=act_order, sym=symmetric)
    return 32, config if version == 1 else config | dict(checkpoint_format="gptq_v2"), quantize


def awq():
    def quantize(rng, name, rows, columns):
        n_groups = columns // GROUP
        q, zeros = rng.integers(0, 16, (rows, columns)), rng.integers(0, 16, (n_groups, rows))
        scales = scaled(rng, (n_groups, rows))
        groups = np.arange(columns) // GROUP
        values = (q - zeros[groups].T).astype(np.float32) * scales[groups].T.astype(np.float32)
        parts = {"qweight": packed(q.T, 1, 4, AWQ_ORDER), "qzeros": packed(zeros, 1, 4, AWQ_ORDER), "scales": scales}
        return values, {f"{name}.{part}": array for part, array in parts.items()}

    return 32, dict(quant_method="awq", bits=4, group_size=GROUP, zero_point=True, version="gemm"), quantize


def nvfp4(is_inverse):
    def quantize(rng, name, rows, columns):
        codes = rng.integers(0, 16, (rows, columns))
        exponents, mantissas = rng.integers(3, 15, (rows, columns // 16)), rng.integers(0, 7, (rows, columns // 16))
        scales = (1 + mantissas / 8) * 2.0 ** (exponents - 7)
        # A power of two, so that products have no rounding errors.
        whole = np.float32(2.0 ** -rng.integers(8, 12))
        signs = np.where(codes >= 8, -1, 1)
        values = (signs * E2M1[codes & 7] * np.repeat(scales, 16, axis=1) * whole).astype(np.float32)
        names = ("weight_packed", "weight_global_scale", "input_global_scale") if is_inverse else ("weight", "weight_scale_2", "input_scale")
        bytes_ = (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8)
        whole = np.float32(1) / whole if is_inverse else whole
        scale = np.array([whole]) if is_inverse else np.array(whole)
        parts = {names[0]: bytes_, "weight_scale": (exponents << 3 | mantissas).astype(np.uint8).view(Fp8), names[1]: scale,
                 names[2]: np.ones((1,), np.float32)}
        return values, {f"{name}.{part}": array for part, array in parts.items()}

    modelopt = dict(quant_method="modelopt", quant_algo="NVFP4")
    return 64, dict(quant_method="compressed-tensors", format="nvfp4-pack-quantized") if is_inverse else modelopt, quantize


FORMATS = {
    "awq": awq(),
    "gptq_act_order": gptq(4, False, True),
    "gptq_2_bits": gptq(2, False, False),
    "gptq_v2": gptq(4, True, False, version=2),
    "gptq_symmetric": gptq(4, True, False),
    "gptq_8_bits": gptq(8, True, False),
    "nvfp4": nvfp4(False),
    "nvfp4_compressed": nvfp4(True),
}


def make(out, name):
    n_embd, quantization, quantize = FORMATS[name]
    rng = np.random.default_rng(sum(name.encode()))
    normal = lambda *shape: rng.normal(size=shape).astype(np.float32)
    plain = {"model.embed_tokens.weight": normal(N_VOCAB, n_embd), "lm_head.weight": normal(N_VOCAB, n_embd), "model.norm.weight": normal(n_embd)}
    layer = "model.layers.0"
    plain |= {f"{layer}.{norm}.weight": normal(n_embd) for norm in ("input_layernorm", "post_attention_layernorm")}
    dense, parts, n_ff = {}, {}, CONFIG["intermediate_size"]
    shapes = {f"self_attn.{x}_proj": (n_embd, n_embd) for x in "qkvo"}
    shapes |= {"mlp.gate_proj": (n_ff, n_embd), "mlp.up_proj": (n_ff, n_embd), "mlp.down_proj": (n_embd, n_ff)}
    for matrix, (rows, columns) in shapes.items():
        values, own = quantize(rng, f"{layer}.{matrix}", rows, columns)
        dense[f"{layer}.{matrix}.weight"] = values
        parts |= own
    config = CONFIG | dict(hidden_size=n_embd)
    write(out / name, config | dict(quantization_config=quantization), plain | parts)
    write(out / name / "dense", config, plain | dense)


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    for name in FORMATS:
        make(Path(sys.argv[1]), name)


if __name__ == "__main__":
    main()
