#!/usr/bin/env python3
"""Records tiny checkpoints of transformers with their results, for the tests of `llama convert`.

    record_checkpoint.py OUT FAMILY...

Writes OUT/FAMILY with the files of the checkpoint in BF16, and `logits`, computed in 64 bits for 24 tokens. Families are those of `oracle.py`. The
configuration is that which transformers saves, without the settings that only published configurations have.

Needs: pip install torch transformers numpy (about 5 GB with torch's libraries; a CPU is enough).
"""

import argparse
import json
import shutil
from pathlib import Path

import oracle
import torch
from transformers import AutoModel, AutoModelForCausalLM

# Sizes in place of those of `oracle.py`, so that a directory has less than 100 kB.
SMALL = dict(vocab_size=48, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=32,
             max_position_embeddings=64)
EXPERTS = dict(num_experts=4, num_local_experts=4, n_routed_experts=4, moe_intermediate_size=16, shared_expert_intermediate_size=16)
FAMILIES = {
    "deepseek_v3": dict(n_group=2, topk_group=1),
    "gemma3_text": dict(num_hidden_layers=2, sliding_window=8, layer_types=["sliding_attention", "full_attention"]),
}


def make(family, out):
    oracle.SIZES |= SMALL
    settings = oracle.FAMILIES[family]
    settings |= {name: value for name, value in EXPERTS.items() if name in settings} | FAMILIES.get(family, {})
    config = oracle.configuration(family)
    kind = AutoModel if family in oracle.ENCODERS else AutoModelForCausalLM
    model = kind.from_config(config, attn_implementation="eager").float().eval()
    oracle.randomize(model)
    checkpoint = out / family
    shutil.rmtree(checkpoint, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(checkpoint)
    (checkpoint / "generation_config.json").unlink(missing_ok=True)
    vocab = {f"t{i}": i for i in range(config.vocab_size)}
    (checkpoint / "tokenizer.json").write_text(json.dumps({"added_tokens": [], "model": {"type": "BPE", "vocab": vocab, "merges": []}}))
    # Buffers, such as frequencies, are computed again: BF16 has rounded them.
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
