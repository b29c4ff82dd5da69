#!/usr/bin/env python3
"""Records tiny checkpoints of transformers with their results, for the tests of `llama convert`.

    record_checkpoint.py OUT FAMILY...

Writes OUT/FAMILY with the files of the checkpoint in BF16, and `logits`, computed in 64 bits for 24 tokens. The families
are defined in `oracle.py`. The configuration is the one that transformers saves, without settings that occur only in
published configurations.

Needs: pip install torch transformers numpy (about 5 GB with torch's libraries; a CPU is enough).
"""

import argparse
import json
import shutil
from pathlib import Path

import oracle
import torch

# Smaller sizes than in `oracle.py`, so that a directory takes less than 100 kB.
SMALL = dict(vocab_size=48, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=32,
             max_position_embeddings=64)
EXPERTS = dict(num_experts=4, num_local_experts=4, n_routed_experts=4, moe_intermediate_size=16, shared_expert_intermediate_size=16)
SCANS = dict(mamba_n_heads=4, mamba_d_head=16, mamba_n_groups=2, mamba_d_state=16)
FAMILIES = {
    "falcon_h1": SCANS | dict(mamba_d_ssm=64, embedding_multiplier=2.0, lm_head_multiplier=0.5, mlp_multipliers=[0.5, 2.0], key_multiplier=0.25,
                              attention_in_multiplier=2.0, attention_out_multiplier=0.5, ssm_multipliers=[0.5, 2.0, 0.25, 4.0, 0.5],
                              ssm_in_multiplier=0.5, ssm_out_multiplier=2.0),
    "gemma4_text": dict(num_hidden_layers=5, sliding_window=8, global_head_dim=16, num_kv_shared_layers=2, final_logit_softcapping=30.0,
                        layer_types=["sliding_attention"] + ["sliding_attention", "full_attention"] * 2,
                        hidden_size_per_layer_input=16, vocab_size_per_layer_input=48, enable_moe_block=True, use_double_wide_mlp=True,
                        top_k_experts=2, num_experts=4, moe_intermediate_size=16),
    "granitemoehybrid": SCANS | dict(layer_types=["mamba", "attention"], shared_intermediate_size=16, intermediate_size=16),
    "cohere2": dict(sliding_window=8, layer_types=["sliding_attention", "full_attention"]),
    "mamba2": dict(state_size=16, num_heads=4, head_dim=16, n_groups=2),
    "modernbert": dict(local_attention=8),
    "lfm2": dict(layer_types=["conv", "full_attention"]),
    "qwen3_5_text": dict(linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=16, linear_value_head_dim=16, head_dim=16,
                         layer_types=["linear_attention", "full_attention"]),
    "t5": dict(d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=4, tie_word_embeddings=True),
    "deepseek_v3": dict(n_group=2, topk_group=1),
    "gemma3_text": dict(num_hidden_layers=2, sliding_window=8, layer_types=["sliding_attention", "full_attention"]),
}


def make(family, out):
    oracle.SIZES |= SMALL
    settings = oracle.FAMILIES[family]
    settings |= {name: value for name, value in EXPERTS.items() if name in settings} | FAMILIES.get(family, {})
    config = oracle.configuration(family)
    kind = oracle.kind_of(family, config)
    model = kind.from_config(config, attn_implementation="eager").float().eval()
    oracle.randomize(model)
    checkpoint = out / family
    shutil.rmtree(checkpoint, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(checkpoint)
    (checkpoint / "generation_config.json").unlink(missing_ok=True)
    vocab = {f"t{i}": i for i in range(config.vocab_size)}
    (checkpoint / "tokenizer.json").write_text(json.dumps({"added_tokens": [], "model": {"type": "BPE", "vocab": vocab, "merges": []}}))
    # Recompute buffers such as frequencies, because BF16 rounded them.
    exact = kind.from_pretrained(checkpoint, attn_implementation="eager", dtype=torch.float64).eval()
    exact.config._experts_implementation = "eager"
    oracle.record(exact, config.vocab_size, family in oracle.ENCODERS, checkpoint / "logits")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("families", nargs="+", metavar="FAMILY")
    args = parser.parse_args()
    torch.set_num_threads(1)
    oracle.N_TOKENS = 24
    for family in args.families:
        make(family, args.out)


if __name__ == "__main__":
    main()
