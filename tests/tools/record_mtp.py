#!/usr/bin/env python3
"""Records tiny checkpoints with a layer of multi-token prediction (MTP), and the results of the layer.

    record_mtp.py OUT [FAMILY]...

Writes OUT/FAMILY with the files of a checkpoint in BF16, and three files of results in 64 bits. `mtp.hidden` has the
hidden states that the layer reads, `mtp.logits` its logits for 12 tokens, and `logits` the logits of the model without
it.

transformers ignores these layers. The script applies one of its decoder layers after the projection of section 2.2 of
arXiv 2412.19437. The projection reads the normalized embedding of a token and the preceding normalized hidden state.

Needs: pip install torch transformers numpy safetensors (about 5 GB with torch's libraries; a CPU is enough).
"""

import argparse
import json
import struct
from pathlib import Path

import numpy as np
import oracle
import torch
from record_checkpoint import EXPERTS, SMALL
from safetensors.torch import load_file, save_file
from transformers.models.glm4_moe import modeling_glm4_moe as glm
from transformers.models.qwen3_next import modeling_qwen3_next as qwen

N_TOKENS = 12


class Family:
    """Names and classes of a family."""

    def __init__(self, settings, layer, norm, prefix, names):
        self.settings, self.layer, self.norm, self.prefix, self.names = settings, layer, norm, prefix, names


GLM = dict(projection="eh_proj", of_embedding="enorm", of_hidden="hnorm", norm="shared_head.norm", head="shared_head.head", embedding="embed_tokens")
GLM = {part: "model.layers.{}." + name for part, name in GLM.items()}
QWEN = dict(projection="mtp.fc", of_embedding="mtp.pre_fc_norm_embedding", of_hidden="mtp.pre_fc_norm_hidden", norm="mtp.norm")
FAMILIES = {
    "glm4_moe": Family(dict(num_hidden_layers=2, num_nextn_predict_layers=1), glm.Glm4MoeDecoderLayer, glm.Glm4MoeRMSNorm, "model.layers.{}.", GLM),
    "qwen3_next": Family(dict(num_hidden_layers=2, layer_types=["linear_attention", "full_attention"]), qwen.Qwen3NextDecoderLayer, qwen.Qwen3NextRMSNorm,
                         "mtp.layers.0.", QWEN),
}


class Predictor(torch.nn.Module):
    """A multi-token prediction layer."""

    def __init__(self, family, config):
        super().__init__()
        n, eps = config.hidden_size, config.rms_norm_eps
        self.layer = family.layer(config, config.num_hidden_layers)
        self.projection = torch.nn.Linear(2 * n, n, bias=False)
        self.of_embedding, self.of_hidden, self.norm = (family.norm(n, eps=eps) for _ in range(3))
        if "head" in family.names:
            self.embedding = torch.nn.Embedding(config.vocab_size, n)
            self.head = torch.nn.Linear(n, config.vocab_size, bias=False)

    def forward(self, model, tokens, hidden):
        embedding = getattr(self, "embedding", model.model.embed_tokens)(tokens)
        x = self.projection(torch.cat([self.of_embedding(embedding), self.of_hidden(hidden)], dim=-1))
        n = tokens.shape[1]
        positions = torch.arange(n)[None]
        mask = torch.full((n, n), float("-inf"), dtype=x.dtype).triu(1)[None, None]
        x = self.layer(x, position_embeddings=model.model.rotary_emb(x, positions), attention_mask=mask, position_ids=positions)
        x = x[0] if isinstance(x, tuple) else x
        return getattr(self, "head", model.lm_head)(self.norm(x))


def published(family, number, state):
    """Returns the weights of the layer by their names in published checkpoints, which store experts separately."""
    weights = {}
    for name, value in state.items():
        part, _, rest = name.partition(".")
        full = f"{family.prefix}{rest}" if part == "layer" else f"{family.names[part]}.{rest}"
        full = full.replace("{}", str(number))
        if not full.endswith(("experts.gate_up_proj", "experts.down_proj")):
            weights[full] = value
            continue
        base = full.rpartition(".")[0]
        for i, matrix in enumerate(value):
            names = ["down_proj"] if full.endswith("down_proj") else ["gate_proj", "up_proj"]
            for name, rows in zip(names, matrix.chunk(len(names))):
                weights[f"{base}.{i}.{name}.weight"] = rows
    return weights


def write(path, tokens, rows):
    values = rows.to(torch.float32).numpy()
    assert np.isfinite(values).all()
    head = struct.pack("<II", len(tokens), values.shape[1]) + struct.pack(f"<{len(tokens)}i", *tokens)
    path.write_bytes(head + values.astype("<f4").tobytes())


def make(name, out):
    family = FAMILIES[name]
    oracle.SIZES |= SMALL
    settings = oracle.FAMILIES[name]
    settings |= {key: value for key, value in EXPERTS.items() if key in settings} | family.settings
    checkpoint = oracle.make(name, out, {})
    config = oracle.configuration(name)
    (out / f"{name}.logits").unlink()
    kind = oracle.kind_of(name, config)
    kind.from_pretrained(checkpoint, dtype=torch.bfloat16).save_pretrained(checkpoint)
    (checkpoint / "generation_config.json").unlink(missing_ok=True)
    saved = checkpoint / "config.json"
    saved.write_text(json.dumps(json.loads(saved.read_text()) | {"num_nextn_predict_layers": 1}, indent=1))
    model = kind.from_pretrained(checkpoint, attn_implementation="eager", dtype=torch.float64).eval()
    model.config._experts_implementation = "eager"
    oracle.record(model, config.vocab_size, False, checkpoint / "logits")
    if hasattr(model.config, "layer_types"):
        model.config.layer_types = [*model.config.layer_types, "full_attention"]
    predictor = Predictor(family, model.config).float().eval()
    oracle.randomize(predictor)
    predictor = predictor.to(torch.bfloat16)
    file = checkpoint / "model.safetensors"
    state = {key: value.contiguous() for key, value in predictor.state_dict().items()}
    weights = {key: value.contiguous().clone() for key, value in published(family, config.num_hidden_layers, state).items()}
    save_file(load_file(file) | weights, file, metadata={"format": "pt"})
    tokens = [(i * 29 + 5) % config.vocab_size for i in range(N_TOKENS)]
    hidden = torch.randn((N_TOKENS, config.hidden_size), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits = predictor.double()(model, torch.tensor([tokens]), hidden.double()[None])[0]
    write(checkpoint / "mtp.hidden", tokens, hidden)
    write(checkpoint / "mtp.logits", tokens, logits)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("families", nargs="*", metavar="FAMILY")
    args = parser.parse_args()
    torch.set_num_threads(1)
    oracle.N_TOKENS = 24
    for name in args.families or FAMILIES:
        make(name, args.out)


if __name__ == "__main__":
    main()
