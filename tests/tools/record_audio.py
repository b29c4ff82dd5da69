#!/usr/bin/env python3
"""Records the rows of a spectrogram and the logits around them with the Python package `transformers`.

    record_audio.py DIRECTORY [NAME]...

DIRECTORY is `tests/data/encoders`; files and weights are those of `record_media.py`. transformers does not have Ultravox: its encoder is that of Whisper
there, and its projector is written here after the published one. All values are computed in 64 bits.

Needs: pip install torch transformers numpy (about 5 GB with torch's libraries; a CPU is enough).
"""

import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from record_media import AFTER, BEFORE, LLAMA, PLACEHOLDER, TEXT, Seeded, load, splitmix64, text_config, within, write

AUDIO = {
    "conv1": "a.conv1d.1",
    "conv2": "a.conv1d.2",
    "embed_positions": "a.position_embd",
    "layer_norm": "a.post_ln",
    "layers.{}.self_attn_layer_norm": "a.blk.{}.ln1",
    "layers.{}.final_layer_norm": "a.blk.{}.ln2",
    "layers.{}.self_attn.q_proj": "a.blk.{}.attn_q",
    "layers.{}.self_attn.k_proj": "a.blk.{}.attn_k",
    "layers.{}.self_attn.v_proj": "a.blk.{}.attn_v",
    "layers.{}.self_attn.out_proj": "a.blk.{}.attn_out",
    "layers.{}.fc1": "a.blk.{}.ffn_up",
    "layers.{}.fc2": "a.blk.{}.ffn_down",
}

QWEN = {"layers.{}.post_attention_layernorm": "blk.{}.ffn_norm"}


class SeededAudio(Seeded):
    def key(self, key):
        return self.keys.get(f"clip.audio.{key}")


def spectrogram(n_mel, n_frames):
    """Noise, also in the frames of silence."""
    numbers = np.arange(n_mel * n_frames, dtype=np.uint64)
    values = (splitmix64(numbers) >> np.uint64(56)).astype(np.float64) / 64 - 2
    return torch.from_numpy(values.reshape(n_frames, n_mel).T.copy())


def audio_config(g):
    return {
        "d_model": g.key("embedding_length"),
        "encoder_ffn_dim": g.key("feed_forward_length"),
        "encoder_layers": g.key("block_count"),
        "encoder_attention_heads": g.key("attention.head_count"),
        "num_mel_bins": g.key("num_mel_bins"),
        "max_source_positions": g.key("context_length"),
    }


def logits_around(model, rows, embedding):
    """Returns the tokens, and the logits of a language model with the rows in place of the placeholders."""
    text_ids = [(i * 37 + 11) % PLACEHOLDER for i in range(BEFORE + AFTER)]
    tokens = text_ids[:BEFORE] + [PLACEHOLDER] * len(rows) + text_ids[BEFORE:]
    x = embedding(torch.tensor([tokens]))
    x[0, BEFORE : BEFORE + len(rows)] = rows
    return tokens, model(inputs_embeds=x).logits[0]


def qwen2a(audio, text):
    return masked_chunk("Qwen2Audio", {"linear": "mm.a.fc"}, "feature_attention_mask", audio, text)


def musicflamingo(audio, text):
    return masked_chunk("AudioFlamingo3", {"linear_1": "mm.a.mlp.1", "linear_2": "mm.a.mlp.2"}, "input_features_mask", audio, text)


def masked_chunk(kind, projector, mask_name, audio, text):
    settings = text_config(text) | {"model_type": "qwen2"}
    settings.pop("head_dim")
    config = getattr(transformers, f"{kind}Config")(
        text_config=settings, audio_config=audio_config(audio), audio_token_index=PLACEHOLDER, audio_token_id=PLACEHOLDER
    )
    model = getattr(transformers, f"{kind}ForConditionalGeneration")._from_config(config, attn_implementation="eager").double().eval()
    names = within("model.audio_tower", AUDIO) | within("model.language_model", TEXT | QWEN)
    names |= within("model.multi_modal_projector", projector)
    load(model, names, audio.tensors | text.tensors, settings["hidden_size"] // settings["num_attention_heads"])
    model.lm_head.weight = model.get_input_embeddings().weight
    n_frames, whole = 61, 2 * audio.key("context_length")
    features = spectrogram(audio.key("num_mel_bins"), whole)[None]
    mask = (torch.arange(whole) < n_frames)[None].long()
    n_rows = ((n_frames - 1) // 2 + 1 - 2) // 2 + 1
    kept = []
    model.model.multi_modal_projector.register_forward_hook(lambda module, inputs, output: kept.append(output))
    text_ids = [(i * 37 + 11) % PLACEHOLDER for i in range(BEFORE + AFTER)]
    tokens = text_ids[:BEFORE] + [PLACEHOLDER] * n_rows + text_ids[BEFORE:]
    ids = torch.tensor([tokens])
    logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), input_features=features, **{mask_name: mask}).logits[0]
    return kept[0].reshape(-1, kept[0].shape[-1])[:n_rows], tokens, logits


def voxtral(audio, text):
    # The defaults of the configuration are those of the published model.
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    settings = text_config(text) | {"model_type": "llama", "rope_parameters": rope, "rope_theta": 10000.0}
    sizes = audio_config(audio)
    of_audio = {
        "hidden_size": sizes["d_model"],
        "intermediate_size": sizes["encoder_ffn_dim"],
        "num_hidden_layers": sizes["encoder_layers"],
        "num_attention_heads": sizes["encoder_attention_heads"],
        "num_mel_bins": sizes["num_mel_bins"],
        "max_source_positions": sizes["max_source_positions"],
    }
    config = transformers.VoxtralConfig(text_config=settings, audio_config=of_audio, audio_token_id=PLACEHOLDER)
    model = transformers.VoxtralForConditionalGeneration._from_config(config, attn_implementation="eager").double().eval()
    names = within("model.audio_tower", AUDIO) | within("model.language_model", TEXT | LLAMA)
    names |= {f"model.multi_modal_projector.linear_{i}": f"mm.a.mlp.{i}" for i in (1, 2)}
    load(model, names, audio.tensors | text.tensors, settings["head_dim"])
    model.lm_head.weight = model.get_input_embeddings().weight
    # Silence fills the second chunk.
    whole = 2 * audio.key("context_length")
    features = spectrogram(audio.key("num_mel_bins"), 2 * whole).reshape(-1, 2, whole).transpose(0, 1)
    rows = model.model.get_audio_features(features).pooler_output
    tokens, logits = logits_around(model, rows, model.get_input_embeddings())
    return rows, tokens, logits


class Ultravox(torch.nn.Module):
    def __init__(self, audio, text):
        super().__init__()
        sizes = audio_config(audio)
        config = transformers.WhisperConfig(**sizes, attn_implementation="eager")
        self.audio_tower = transformers.models.whisper.modeling_whisper.WhisperEncoder(config)
        self.language_model = transformers.LlamaForCausalLM._from_config(transformers.LlamaConfig(**text_config(text)), attn_implementation="eager")
        self.stack, n_mid, n_embd = audio.key("projector.stack_factor"), audio.key("projector.hidden_length"), sizes["d_model"]
        self.norm_pre = transformers.models.llama.modeling_llama.LlamaRMSNorm(n_embd * self.stack, eps=1e-6)
        self.norm_mid = transformers.models.llama.modeling_llama.LlamaRMSNorm(n_mid, eps=1e-6)
        self.linear_1 = torch.nn.Linear(n_embd * self.stack, 2 * n_mid, bias=False)
        self.linear_2 = torch.nn.Linear(n_mid, text.key("embedding_length"), bias=False)

    def tie_weights(self):
        self.language_model.tie_weights()

    def rows(self, features):
        tower = self.audio_tower
        x = torch.nn.functional.gelu(tower.conv1(features))
        x = torch.nn.functional.gelu(tower.conv2(x)).permute(0, 2, 1)
        x = x + tower.embed_positions.weight[: x.shape[1]]
        for layer in tower.layers:
            found = layer(x, attention_mask=None)
            x = found[0] if isinstance(found, tuple) else found
        x = tower.layer_norm(x)
        missing = -x.shape[1] % self.stack
        x = torch.nn.functional.pad(x, (0, 0, 0, missing)).reshape(1, -1, x.shape[2] * self.stack)
        x, gate = self.linear_1(self.norm_pre(x)).chunk(2, dim=-1)
        return self.linear_2(self.norm_mid(torch.nn.functional.silu(gate) * x))[0]


def ultravox(audio, text):
    model = Ultravox(audio, text).double().eval()
    names = within("audio_tower", AUDIO) | within("language_model.model", TEXT | LLAMA)
    names |= {"norm_pre": "mm.a.norm_pre", "norm_mid": "mm.a.norm_mid", "linear_1": "mm.a.mlp.1", "linear_2": "mm.a.mlp.2"}
    load(model, names, audio.tensors | text.tensors, text_config(text)["head_dim"])
    rows = model.rows(spectrogram(audio.key("num_mel_bins"), 53)[None])
    tokens, logits = logits_around(model.language_model, rows, model.language_model.get_input_embeddings())
    return rows, tokens, logits


FAMILIES = {"qwen2a": qwen2a, "voxtral": voxtral, "ultravox": ultravox, "musicflamingo": musicflamingo}


def record(directory, name):
    audio, text = SeededAudio(directory / f"{name}.header.gguf"), Seeded(directory / f"{name}-text.header.gguf")
    with torch.no_grad():
        rows, tokens, logits = FAMILIES[name](audio, text)
    write(directory / f"{name}.rows", list(range(len(rows))), rows.numpy())
    write(directory / f"{name}.logits", tokens, logits.numpy())


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    torch.manual_seed(0)
    for family in sys.argv[2:] or FAMILIES:
        record(Path(sys.argv[1]), family)
