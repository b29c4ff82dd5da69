#!/usr/bin/env python3
"""Records the logits of a GGUF file with the implementation of its architecture in the Python package `transformers`.

    record_transformers.py MODEL.gguf TYPE [--llama PROGRAM [--arch FILE.rs]] [--set KEY=VALUE]... [--name PARAMETER=TENSOR]... [--ignore TENSOR]...

TYPE is the `model_type` of transformers, such as `qwen3`. MODEL.logits is written to the same directory, where
`llama arch check MODEL.gguf` finds it. The model is built from the keys and weights of the file, and computed in 64
bits. MODEL.gguf is a file from `llama arch seed`, whose tensors have type F32, F16 or I32.

`--llama` is the path of the binary `llama`. Settings and parameters then follow from the `checkpoint` section of the
architecture, if it covers the class of transformers. `--arch` passes the file of a declaration that is not built
in. Other types need names and settings:

`--set expert_dim=64` sets a size that the usual keys do not contain (JSON or a string). `--name` maps a parameter
without a usual name to its tensors. Each `{}` of the parameter is a number, and `{}` of a tensor is the first number,
the layer:

    --name 'model.layers.{}.self_attn.qkv_proj=blk.{}.attn_q,blk.{}.attn_k,blk.{}.attn_v'    concatenated
    --name 'model.layers.{}.self_attn.q_proj=blk.{}.attn_q|halves'                            transformed
    --name 'model.layers.{}.mlps.{}.up_proj=blk.{2*i+j}.ffn_up'                               of the numbers i and j
    --name 'model.layers.{}.self_attn.kv_b_proj=blk.{}.attn_k_b|transpose,blk.{}.attn_v_b'    concatenated per head

Tensors are concatenated along their rows; stacks are concatenated along the rows of each matrix. If the parameter has
one dimension less than a stack, the matrices of the stack are concatenated. Each tensor may have its own changes:

- `|halves` reorders rows from interleaved RoPE pairs (`rope: norm`) to the half-split order of most published models;
  `|halves:N` does so in heads of N rows.
- `|minus-one` is for norms that add 1 to the published weights.
- `|log` is for the logarithm of negated values (A of Mamba).
- `|transpose` transposes a matrix, or each matrix of a stack.
- `|pad` appends zeros if the parameter has more rows, or more matrices in a stack, than the tensor.

Needs: pip install torch transformers numpy (about 5 GB with torch's libraries; a CPU is enough).
"""

import argparse
import json
import re
import struct
import sys
from pathlib import Path

import numpy as np
import torch
from mapping import Mapping
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

# Maps parameter names without `.weight` or `.bias` to tensor names.
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.{}.input_layernorm": "blk.{}.attn_norm",
    "model.layers.{}.self_attn.q_proj": "blk.{}.attn_q",
    "model.layers.{}.self_attn.k_proj": "blk.{}.attn_k",
    "model.layers.{}.self_attn.v_proj": "blk.{}.attn_v",
    "model.layers.{}.self_attn.o_proj": "blk.{}.attn_output",
    "model.layers.{}.self_attn.qkv_proj": "blk.{}.attn_q,blk.{}.attn_k,blk.{}.attn_v",
    "model.layers.{}.self_attn.q_norm": "blk.{}.attn_q_norm",
    "model.layers.{}.self_attn.k_norm": "blk.{}.attn_k_norm",
    "model.layers.{}.self_attn.sinks": "blk.{}.attn_sinks",
    "model.layers.{}.post_attention_layernorm": "blk.{}.ffn_norm",
    "model.layers.{}.mlp.gate_proj": "blk.{}.ffn_gate",
    "model.layers.{}.mlp.up_proj": "blk.{}.ffn_up",
    "model.layers.{}.mlp.down_proj": "blk.{}.ffn_down",
    "model.layers.{}.mlp.gate_up_proj": "blk.{}.ffn_gate,blk.{}.ffn_up",
    "model.layers.{}.mlp.gate": "blk.{}.ffn_gate_inp",
    "model.layers.{}.mlp.experts.gate_up_proj": "blk.{}.ffn_gate_exps,blk.{}.ffn_up_exps",
    "model.layers.{}.mlp.experts.down_proj": "blk.{}.ffn_down_exps",
}

# Maps configuration settings to GGUF keys without the architecture prefix. Settings that a model type lacks are
# skipped.
SETTINGS = {
    "vocab_size": "vocab_size",
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
    "sliding_window": "attention.sliding_window",
    "num_experts": "expert_count",
    "num_local_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
}

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
TYPES = {0: np.float32, 1: np.float16, 26: np.int32}


class Gguf:
    """Reads the keys and tensors of a file."""

    def __init__(self, path):
        self.data, self.at = path.read_bytes(), 4
        if self.data[:4] != b"GGUF":
            sys.exit(f"{path}: expected a GGUF file, which begins with GGUF")
        self.read("I")
        n_tensors, n_keys = self.read("Q"), self.read("Q")
        self.keys = {}
        for _ in range(n_keys):
            key = self.string()
            self.keys[key] = self.value(self.read("I"))
        infos = [self.info() for _ in range(n_tensors)]
        align = self.keys.get("general.alignment", 32)
        start = -(-self.at // align) * align
        self.tensors = {name: self.tensor(path, name, start, *info) for name, *info in infos}

    def read(self, kind):
        (value,) = struct.unpack_from("<" + kind, self.data, self.at)
        self.at += struct.calcsize("<" + kind)
        return value

    def string(self):
        n = self.read("Q")
        self.at += n
        return self.data[self.at - n : self.at].decode("utf-8", "replace")

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            kind, n = self.read("I"), self.read("Q")
            return [self.value(kind) for _ in range(n)]
        return self.read(SCALARS[kind])

    def info(self):
        name = self.string()
        shape = [self.read("Q") for _ in range(self.read("I"))]
        return name, shape, self.read("I"), self.read("Q")

    def tensor(self, path, name, start, shape, kind, offset):
        if kind not in TYPES:
            sys.exit(f"{path}: tensor `{name}` has type {kind}, expected F32 (0), F16 (1) or I32 (26)")
        n = int(np.prod(shape))
        if start + offset + n * np.dtype(TYPES[kind]).itemsize > len(self.data):
            sys.exit(f"{path}: ends before the data of tensor `{name}`; expected a file with weights")
        values = np.frombuffer(self.data, TYPES[kind], n, start + offset)
        return values.reshape(shape[::-1])

    def key(self, key):
        """Returns the value of a key. The architecture prefix is omitted, except after `/`."""
        return self.keys.get(key[1:] if key.startswith("/") else f"{self.keys['general.architecture']}.{key}")


def configuration(gguf, args, mapping):
    """Returns the configuration of the model: the settings that follow from the keys of the file, overridden by
    the arguments."""
    known = AutoConfig.for_model(args.type)
    settings = {name: gguf.key(key) for name, key in SETTINGS.items() if hasattr(known, name)} if mapping is None else mapping.settings(gguf.key, known)
    settings = {name: value for name, value in settings.items() if value is not None}
    settings["vocab_size"] = gguf.tensors["token_embd.weight"].shape[0]
    if "head_dim" not in settings and hasattr(known, "head_dim"):
        settings["head_dim"] = settings["hidden_size"] // settings["num_attention_heads"]
    if "num_key_value_heads" not in settings and hasattr(known, "num_key_value_heads"):
        settings["num_key_value_heads"] = settings["num_attention_heads"]
    for name, biases in (("attention_bias", ("attn_q.bias", "attn_q_a.bias")), ("mlp_bias", ("ffn_up.bias",))):
        if hasattr(known, name):
            settings[name] = any(tensor.endswith(biases) for tensor in gguf.tensors)
    if hasattr(known, "rope_parameters"):
        settings["rope_parameters"] = {"rope_type": "default", "rope_theta": gguf.key("rope.freq_base") or 10000.0}
    experts = [t for name, t in gguf.tensors.items() if name.endswith("ffn_down_exps.weight")]
    if experts and hasattr(known, "moe_intermediate_size"):
        settings.setdefault("moe_intermediate_size", experts[0].shape[-1])
    settings["tie_word_embeddings"] = "output.weight" not in gguf.tensors
    settings |= {name: None for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    for text in args.set:
        name, _, value = text.partition("=")
        try:
            settings[name] = json.loads(value)
        except json.JSONDecodeError:
            settings[name] = value
    return AutoConfig.for_model(args.type, **settings)


def mapped(gguf, model, mapping, args):
    """Returns the parameters of the model by name, built from the tensors of the file by a `checkpoint` section."""
    mapping.config = model.config.to_dict()
    if faults := list(mapping.contradictions(gguf.key)):
        sys.exit("\n".join(["--set must set more of the configuration:", *faults]))
    for note in mapping.absent(gguf.key):
        print(f"note: {note}")
    shapes = {name: tuple(p.shape) for name, p in model.state_dict().items()}
    parameters, unused = mapping.parameters(gguf.tensors, shapes)
    unused = [name for name in unused if not any(re.fullmatch(i.replace("{}", r"\d+"), name) for i in args.ignore)]
    if unused:
        sys.exit(f"the section has no parameters for {', '.join(unused)}; --ignore leaves tensors out")
    state = {}
    for name, values in parameters.items():
        lacking = np.isnan(values)
        if lacking.all() and name == "lm_head.weight":
            values = parameters["model.embed_tokens.weight"]
        elif lacking.all() and name.endswith("bias"):
            print(f"{name}: 0, since the file has no such tensor")
            values = np.zeros(values.shape)
        elif lacking.any():
            sys.exit(f"the file has {lacking.sum()} of {values.size} elements of {name} {list(values.shape)} less")
        state[name] = torch.from_numpy(values)
    return state


def changed(values, change, head_dim, expected):
    """Returns the values of a tensor in the form of the published model."""
    change, _, argument = change.partition(":")
    if change == "minus-one":
        return values - 1
    if change == "log":
        return np.log(-values)
    if change == "transpose":
        return np.swapaxes(values, -1, -2)
    if change == "swap":
        return np.swapaxes(values, 0, 1)
    if change == "pad":
        return np.concatenate([values, np.zeros((expected[0] - len(values), *values.shape[1:]))])
    if change == "neighbors":
        rotated, heads = int(argument), values.reshape(len(values) // head_dim, head_dim, *values.shape[1:])
        pairs = heads[:, :rotated].reshape(len(heads), 2, rotated // 2, *values.shape[1:]).swapaxes(1, 2)
        return np.concatenate([pairs.reshape(heads[:, :rotated].shape), heads[:, rotated:]], axis=1).reshape(values.shape)
    if change == "halves":
        size = int(argument or head_dim)
        pairs = values.reshape(values.shape[0] // size, size // 2, 2, *values.shape[1:])
        return pairs.swapaxes(1, 2).reshape(values.shape)
    sys.exit(f"no change `{change}`: expected halves, neighbors, minus-one, log, pad, swap or transpose")


def numbered(tensor, numbers):
    """Returns the name of a tensor with the numbers of its parameter inserted: the first for `{}`, both as i and j in
    `{2*i+j}`."""

    def number(match):
        text = match[1] or "i"
        if not re.fullmatch(r"[0-9ij+*() -]+", text):
            sys.exit(f"--name: {match[0]} of `{tensor}` is not an expression of i and j")
        return str(eval(text, {"__builtins__": {}}, dict(zip("ij", numbers))))

    return re.sub(r"{([^}]*)}", number, tensor)


def joined(arrays, expected):
    """Returns the value of a parameter: arrays concatenated along the rows of each matrix, without the stack dimension
    if the parameter has none."""
    value = arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=-2 if arrays[0].ndim > 1 else 0)
    flat = (value.shape[0] * value.shape[1], *value.shape[2:]) if value.ndim > 1 else value.shape
    return value.reshape(flat) if flat == tuple(expected) else value


def weights(gguf, model, args):
    """Returns the parameters of the model by name, built from the tensors of the file."""
    names = dict(NAMES)
    for text in args.name:
        parameter, _, tensors = text.partition("=")
        names[parameter] = tensors
    head_dim = gguf.key("attention.key_length")
    if not head_dim and gguf.key("attention.head_count"):
        head_dim = gguf.key("embedding_length") // gguf.key("attention.head_count")
    unused, state, faults = set(gguf.tensors), {}, []
    for parameter, expected in model.state_dict().items():
        base, dot, suffix = parameter.rpartition(".")
        if suffix not in ("weight", "bias"):
            base, dot, suffix = parameter, "", ""
        numbers = [int(n) for n in re.findall(r"(?<=\.)\d+(?=\.|$)", base)]
        pattern = re.sub(r"(?<=\.)\d+(?=\.|$)", "{}", base)
        if pattern not in names:
            faults.append(f"--name '{pattern}=…' for the parameter {parameter} {list(expected.shape)}")
            continue
        sources = [source.split("|") for source in names[pattern].split(",")]
        parts = [numbered(tensor, numbers) for tensor, *_ in sources]
        if suffix != "" or parts[0] not in gguf.tensors:
            parts = [f"{part}.{suffix or 'weight'}" for part in parts]
        if parameter == "lm_head.weight" and parts[0] not in gguf.tensors:
            parts = ["token_embd.weight"]
        missing = [part for part in parts if part not in gguf.tensors]
        if missing and suffix == "bias":
            print(f"{parameter}: 0, since the file has no {missing[0]}")
            state[parameter] = torch.zeros_like(expected)
            continue
        if missing:
            faults.append(f"the tensor {missing[0]} for the parameter {parameter} {list(expected.shape)}")
            continue
        unused.difference_update(parts)
        arrays = [gguf.tensors[part].astype(np.float64) for part in parts]
        for i, (_, *changes) in enumerate(sources):
            for change in changes:
                arrays[i] = changed(arrays[i], change, head_dim, expected.shape)
        value = joined(arrays, expected.shape)
        squeezed = lambda shape: [n for n in shape if n != 1]
        if squeezed(value.shape) != squeezed(expected.shape):
            found = f"{list(value.shape)} from {', '.join(parts)}"
            faults.append(f"a parameter {parameter} {list(expected.shape)}; found {found}")
            continue
        state[parameter] = torch.from_numpy(np.ascontiguousarray(value.reshape(expected.shape)))
    unused -= {name for name in unused if any(re.fullmatch(i.replace("{}", r"\d+"), name) for i in args.ignore)}
    faults += [f"a use for the tensor {name} {list(gguf.tensors[name].shape)}, or --ignore" for name in sorted(unused)]
    if faults:
        # One line covers all layers.
        lines = dict.fromkeys(re.sub(r"\.\d+\.", ".{}.", fault) for fault in faults)
        sys.exit("\n".join(["file and model do not match (shapes: outermost dimension first); missing:", *lines]))
    return state


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, metavar="MODEL.gguf")
    parser.add_argument("type", metavar="TYPE", help="model_type of transformers")
    parser.add_argument("--llama", type=Path, metavar="PROGRAM", help="binary whose `checkpoint` sections map the parameters")
    parser.add_argument("--arch", type=Path, metavar="FILE.rs", help="declaration with the `checkpoint` sections, for --llama")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="setting of the configuration")
    parser.add_argument("--name", action="append", default=[], metavar="PARAMETER=TENSOR", help="tensor of a parameter")
    # A language model has no classifier head.
    parser.add_argument("--ignore", action="append", default=[r"cls\..*"], metavar="TENSOR", help="tensor that is not used")
    parser.add_argument("--tokens", type=int, default=96, metavar="N", help="length of the sequence [default: 96]")
    parser.add_argument("--without-token", type=int, metavar="N", help="token that the model treats differently, such as padding")
    parser.add_argument("--output", type=Path, metavar="FILE", help="where to write [default: MODEL.logits]")
    args = parser.parse_args()
    gguf = Gguf(args.model)
    known = AutoConfig.for_model(args.type)
    kinds = AutoModelForCausalLM if type(known) in AutoModelForCausalLM._model_mapping else AutoModel
    mapping = Mapping(args.llama, args.arch or gguf.keys["general.architecture"], kinds._model_mapping[type(known)].__name__) if args.llama else None
    mapping = mapping if mapping and mapping.section else None
    config = configuration(gguf, args, mapping)
    # Use the eager implementations: optimized ones do not support 64 bits.
    config._experts_implementation = "eager"
    model = kinds.from_config(config, attn_implementation="eager").double().eval()
    state = weights(gguf, model, args) if mapping is None else mapped(gguf, model, mapping, args)
    model.load_state_dict(state, strict=True)
    n_vocab = config.vocab_size
    # Distinct tokens, if the vocabulary is large enough.
    tokens = [token for i in range(args.tokens + n_vocab) if (token := (i * 37 + 11) % n_vocab) != args.without_token]
    tokens = tokens[: args.tokens]
    with torch.no_grad():
        result = model(input_ids=torch.tensor([tokens]))
    values = (result.logits if "logits" in result else result.last_hidden_state)[0].to(torch.float32).numpy()
    output = args.output or args.model.with_suffix(".logits")
    head = struct.pack("<II", len(tokens), values.shape[1]) + struct.pack(f"<{len(tokens)}i", *tokens)
    output.write_bytes(head + values.astype("<f4").tobytes())
    print(f"{output}: {values.shape[0]} tokens, {values.shape[1]} values each")


if __name__ == "__main__":
    main()
