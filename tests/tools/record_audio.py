#!/usr/bin/env python3
"""Records the rows of a spectrogram and the logits around them with the Python package `transformers`.

    record_audio.py DIRECTORY [NAME]...

DIRECTORY is `tests/data/encoders`; files and weights follow `record_media.py`. transformers does not implement
Ultravox, so this script combines its Whisper encoder with a reimplementation of the published projector. All values are
computed in 64 bits.

Needs: pip install torch transformers numpy (about 5 GB with torch's libraries; a CPU is enough).
"""

import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from record_media import AFTER, BEFORE, LLAMA, PLACEHOLDER, QWEN3, TEXT, Seeded, load, splitmix64, text_config, within, write

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
    """Noise, including the frames of silence."""
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
    # The defaults are the configuration of the published model.
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
    # The second chunk is padded with silence.
    whole = 2 * audio.key("context_length")
    features = spectrogram(audio.key("num_mel_bins"), 2 * whole).reshape(-1, 2, whole).transpose(0, 1)
    rows = model.model.get_audio_features(features).pooler_output
    tokens, logits = logits_around(model, rows, model.get_input_embeddings())
    return rows, tokens, logits


class WhisperAndLlama(torch.nn.Module):
    """A Whisper encoder, and a language model that transformers does not combine with it."""

    def __init__(self, audio, text):
        super().__init__()
        config = transformers.WhisperConfig(**audio_config(audio), attn_implementation="eager")
        self.audio_tower = transformers.models.whisper.modeling_whisper.WhisperEncoder(config)
        self.language_model = transformers.LlamaForCausalLM._from_config(transformers.LlamaConfig(**text_config(text)), attn_implementation="eager")
        self.stack = audio.key("projector.stack_factor")

    def tie_weights(self):
        self.language_model.tie_weights()


class Ultravox(WhisperAndLlama):
    def __init__(self, audio, text):
        super().__init__(audio, text)
        n_mid, n_embd = audio.key("projector.hidden_length"), audio.key("embedding_length")
        self.norm_pre = transformers.models.llama.modeling_llama.LlamaRMSNorm(n_embd * self.stack, eps=1e-6)
        self.norm_mid = transformers.models.llama.modeling_llama.LlamaRMSNorm(n_mid, eps=1e-6)
        self.linear_1 = torch.nn.Linear(n_embd * self.stack, 2 * n_mid, bias=False)
        self.linear_2 = torch.nn.Linear(n_mid, text.key("embedding_length"), bias=False)

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


class Qwen25Omni(torch.nn.Module):
    def __init__(self, audio, text):
        super().__init__()
        # Files contain the complete position table.
        positions = torch.from_numpy(audio.tensors.pop("a.position_embd.weight"))
        sizes = audio_config(audio) | {"max_source_positions": len(positions), "output_dim": audio.key("projection_dim")}
        kind = transformers.models.qwen2_5_omni.modeling_qwen2_5_omni.Qwen2_5OmniAudioEncoder
        configs = transformers.models.qwen2_5_omni.configuration_qwen2_5_omni
        self.audio_tower = kind._from_config(configs.Qwen2_5OmniAudioEncoderConfig(**sizes, n_window=len(positions)), attn_implementation="eager")
        self.audio_tower.positional_embedding.positional_embedding = positions
        # Files without this key use epsilon 0.
        settings = text_config(text) | {"rms_norm_eps": text.key("attention.layer_norm_rms_epsilon") or 0.0}
        settings.pop("head_dim")
        self.language_model = transformers.Qwen2ForCausalLM._from_config(transformers.Qwen2Config(**settings), attn_implementation="eager")

    def tie_weights(self):
        self.language_model.tie_weights()


def qwen25o(audio, text):
    model = Qwen25Omni(audio, text).double().eval()
    names = {name: tensor for name, tensor in AUDIO.items() if name not in ("embed_positions", "layer_norm")}
    names |= {"ln_post": "a.post_ln", "proj": "mm.a.fc"}
    load(model, within("audio_tower", names) | within("language_model.model", TEXT | QWEN), audio.tensors | text.tensors, text_config(text)["head_dim"])
    n_frames = 125
    rows = model.audio_tower(spectrogram(audio.key("num_mel_bins"), n_frames), feature_lens=torch.tensor([n_frames])).last_hidden_state
    tokens, logits = logits_around(model.language_model, rows, model.language_model.get_input_embeddings())
    return rows, tokens, logits


QWEN3A = {
    "conv2d1": "a.conv2d.1",
    "conv2d2": "a.conv2d.2",
    "conv2d3": "a.conv2d.3",
    "conv_out": "a.conv_out",
    "ln_post": "a.post_ln",
    "proj1": "mm.a.mlp.1",
    "proj2": "mm.a.mlp.2",
}


class Qwen3Omni(torch.nn.Module):
    def __init__(self, audio, text):
        super().__init__()
        tensors, sizes = audio.tensors, audio_config(audio)
        # Files contain only the first positions of the table.
        positions = torch.from_numpy(tensors.pop("a.position_embd.weight"))
        sizes |= {"max_source_positions": len(positions), "output_dim": audio.key("projection_dim")}
        sizes |= {"downsample_hidden_size": len(tensors["a.conv2d.1.bias"]), "attn_implementation": "eager"}
        kind = transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe.Qwen3OmniMoeAudioEncoder
        self.audio_tower = kind(transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe.Qwen3OmniMoeAudioEncoderConfig(**sizes))
        self.audio_tower.positional_embedding.positional_embedding = positions
        settings = text_config(text) | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
        self.language_model = transformers.Qwen3ForCausalLM._from_config(transformers.Qwen3Config(**settings), attn_implementation="eager")

    def tie_weights(self):
        self.language_model.tie_weights()


def qwen3a(audio, text):
    model = Qwen3Omni(audio, text).double().eval()
    layers = {name: tensor for name, tensor in AUDIO.items() if name.startswith("layers")}
    names = within("audio_tower", layers | QWEN3A) | within("language_model.model", TEXT | QWEN3)
    load(model, names, audio.tensors | text.tensors, text_config(text)["head_dim"])
    # Longer than the attention window, and ends within a piece.
    n_frames = 930
    features = spectrogram(audio.key("num_mel_bins"), n_frames)
    rows = model.audio_tower(features, feature_lens=torch.tensor([n_frames])).last_hidden_state
    tokens, logits = logits_around(model.language_model, rows, model.language_model.get_input_embeddings())
    return rows, tokens, logits


GEMMA4_BLOCK = {
    "feed_forward1.pre_layer_norm": "ffn_norm",
    "feed_forward1.post_layer_norm": "ffn_post_norm",
    "norm_pre_attn": "attn_pre_norm",
    "norm_post_attn": "attn_post_norm",
    "self_attn.relative_k_proj": "attn_k_rel",
    "self_attn.per_dim_scale": "per_dim_scale.weight",
    # Files store these two norms under swapped names.
    "lconv1d.pre_layer_norm": "conv_norm",
    "lconv1d.conv_norm": "norm_conv",
    "lconv1d.depthwise_conv1d": "conv_dw",
    "feed_forward2.pre_layer_norm": "ffn_norm_1",
    "feed_forward2.post_layer_norm": "ffn_post_norm_1",
    "norm_out": "ln2",
}

# Matrices with bounds.
GEMMA4_BOUNDED = {
    "feed_forward1.ffw_layer_1": "ffn_up",
    "feed_forward1.ffw_layer_2": "ffn_down",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.post": "attn_out",
    "lconv1d.linear_start": "conv_pw1",
    "lconv1d.linear_end": "conv_pw2",
    "feed_forward2.ffw_layer_1": "ffn_up_1",
    "feed_forward2.ffw_layer_2": "ffn_down_1",
}

GEMMA4_PER_LAYER = {
    "embed_tokens_per_layer": "per_layer_token_embd",
    "per_layer_model_projection": "per_layer_model_proj",
    "per_layer_projection_norm": "per_layer_proj_norm",
    "layers.{}.per_layer_input_gate": "blk.{}.inp_gate",
    "layers.{}.per_layer_projection": "blk.{}.proj",
    "layers.{}.post_per_layer_input_norm": "blk.{}.post_norm",
}


def gemma4_tower():
    names = {"subsample_conv_projection.input_proj_linear": "a.input_projection", "output_proj": "a.pre_encode.out"}
    for i in range(2):
        names |= {f"subsample_conv_projection.layer{i}.conv": f"a.conv1d.{i}", f"subsample_conv_projection.layer{i}.norm": f"a.conv1d.{i}.norm"}
    names |= {f"layers.{{}}.{module}": f"a.blk.{{}}.{tensor}" for module, tensor in GEMMA4_BLOCK.items()}
    for module, tensor in GEMMA4_BOUNDED.items():
        names[f"layers.{{}}.{module}.linear"] = f"a.blk.{{}}.{tensor}"
        names |= {f"layers.{{}}.{module}.{bound}": f"a.blk.{{}}.{tensor}.{bound}" for bound in ("input_min", "input_max", "output_min", "output_max")}
    return names


def gemma4a(audio, text):
    from record_media_families import GEMMA4, divide_frequencies, gemma4_text, model_of

    n_pl = text.key("embedding_length_per_layer_input")
    settings = gemma4_text(text) | {"hidden_size_per_layer_input": n_pl, "vocab_size_per_layer_input": text.key("vocab_size")}
    settings["use_bidirectional_attention"] = None
    channels = [len(audio.tensors[f"a.conv1d.{i}.norm.weight"]) for i in range(2)]
    n_embd, n_mel = audio.key("embedding_length"), audio.key("num_mel_bins")
    ears = {
        "hidden_size": n_embd,
        "num_hidden_layers": audio.key("block_count"),
        "num_attention_heads": audio.key("attention.head_count"),
        "subsampling_conv_channels": channels,
        "output_proj_dims": len(audio.tensors["a.pre_encode.out.weight"]),
    }
    config = transformers.Gemma4Config(text_config=settings, audio_config=ears, vision_config=None, audio_token_id=PLACEHOLDER, tie_word_embeddings=True)
    model = model_of(config)
    # The published class expects as many mel filters as channels.
    n_freq = ((n_mel + 1) // 2 + 1) // 2
    model.model.audio_tower.subsample_conv_projection.input_proj_linear = torch.nn.Linear(n_freq * channels[1], n_embd, bias=False)
    # Files store the result of this function.
    torch.nn.functional.softplus = lambda x: x
    # The published class computes attention in float32.
    torch.Tensor.float = torch.Tensor.double
    model = model.double().eval()
    divide_frequencies(model.model.language_model.rotary_emb, text)
    names = within("model.audio_tower", gemma4_tower()) | within("model.language_model", TEXT | GEMMA4 | GEMMA4_PER_LAYER)
    names["model.embed_audio.embedding_projection"] = "mm.a.input_projection"
    load(model, names, audio.tensors | text.tensors, settings["head_dim"])
    features = spectrogram(n_mel, 63).T[None]
    mask = torch.ones(features.shape[:2], dtype=torch.bool)
    rows = model.model.get_audio_features(features, mask).pooler_output[0]
    text_ids = [(i * 37 + 11) % PLACEHOLDER for i in range(BEFORE + AFTER)]
    tokens = text_ids[:BEFORE] + [PLACEHOLDER] * len(rows) + text_ids[BEFORE:]
    logits = model(input_ids=torch.tensor([tokens]), input_features=features, input_features_mask=mask).logits[0]
    return rows, tokens, logits


GLMA = {
    "conv1": "a.conv1d.1",
    "conv2": "a.conv1d.2",
    "norm": "mm.a.norm_pre",
    "layers.{}.input_layernorm": "a.blk.{}.ln1",
    "layers.{}.post_attention_layernorm": "a.blk.{}.ln2",
    "layers.{}.self_attn.q_proj": "a.blk.{}.attn_q",
    "layers.{}.self_attn.k_proj": "a.blk.{}.attn_k",
    "layers.{}.self_attn.v_proj": "a.blk.{}.attn_v",
    "layers.{}.self_attn.o_proj": "a.blk.{}.attn_out",
    "layers.{}.mlp.fc1": "a.blk.{}.ffn_up",
    "layers.{}.mlp.fc2": "a.blk.{}.ffn_down",
}


def glma(audio, text):
    tensors, n_head, n_embd = audio.tensors, audio.key("attention.head_count"), audio.key("embedding_length")
    # Files rotate pairs (2 i, 2 i + 1) in the first half of a head; transformers rotates (i, i + d / 4).
    for name in [name for name in tensors if ".attn_q." in name or ".attn_k." in name]:
        heads = tensors[name].reshape(n_head, n_embd // n_head, -1)
        rotated = n_embd // n_head // 2
        tensors[name] = np.concatenate([heads[:, 0:rotated:2], heads[:, 1:rotated:2], heads[:, rotated:]], axis=1).reshape(tensors[name].shape)
    # The class in transformers adds no rows around the audio; the published model replaces the embeddings of two
    # tokens.
    around = [torch.from_numpy(tensors.pop(name)).double()[None] for name in ("v.boi", "v.eoi")]
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    settings = text_config(text) | {"model_type": "llama", "rope_parameters": rope}
    ears = {
        "hidden_size": n_embd,
        "intermediate_size": audio.key("feed_forward_length"),
        "num_hidden_layers": audio.key("block_count"),
        "num_attention_heads": n_head,
        "num_mel_bins": audio.key("num_mel_bins"),
        "max_position_embeddings": audio.key("context_length"),
        "rope_parameters": rope | {"partial_rotary_factor": 0.5},
    }
    config = transformers.GlmAsrConfig(text_config=settings, audio_config=ears, audio_token_id=PLACEHOLDER)
    model = transformers.GlmAsrForConditionalGeneration._from_config(config, attn_implementation="eager").double().eval()
    names = within("model.audio_tower", GLMA) | within("model.language_model", TEXT | LLAMA)
    names |= {f"model.multi_modal_projector.linear_{i}": f"mm.a.mlp.{i}" for i in (1, 2)}
    load(model, names, tensors | text.tensors, settings["head_dim"])
    model.lm_head.weight = model.get_input_embeddings().weight
    # The second chunk ends with silence, which is encoded.
    whole, lengths = 2 * audio.key("context_length"), [80, 61]
    features = spectrogram(audio.key("num_mel_bins"), 2 * whole).reshape(-1, 2, whole).transpose(0, 1)
    mask = torch.stack([(torch.arange(whole) < length).long() for length in lengths])
    found = model.model.get_audio_features(features, mask).pooler_output
    n_first = (lengths[0] + 1) // 2 // audio.key("projector.stack_factor")
    rows = torch.cat([around[0], found[:n_first], around[1], around[0], found[n_first:], around[1]])
    tokens, logits = logits_around(model, rows, model.get_input_embeddings())
    return rows, tokens, logits


GRANITE_BLOCK = {
    "ff1.pre_norm": "ffn_norm",
    "ff1.up_proj": "ffn_up",
    "ff1.down_proj": "ffn_down",
    "attn.pre_norm": "ln1",
    "attn.to_q": "attn_q",
    "attn.to_kv": "attn_kv",
    "attn.to_out": "attn_out",
    "attn.rel_pos_emb": "attn_rel_pos_emb",
    # Files store these two norms under swapped names.
    "conv.norm": "norm_conv",
    "conv.up_conv": "conv_pw1",
    "conv.depth_conv.conv": "conv_dw",
    "conv.batch_norm": "conv_norm",
    "conv.down_conv": "conv_pw2",
    "ff2.pre_norm": "ffn_norm_1",
    "ff2.up_proj": "ffn_up_1",
    "ff2.down_proj": "ffn_down_1",
    "post_norm": "ln2",
}

QFORMER_BLOCK = {
    "attention.attention.query": "self_attn_q",
    "attention.attention.key": "self_attn_k",
    "attention.attention.value": "self_attn_v",
    "attention.output.dense": "self_attn_out",
    "attention.output.LayerNorm": "self_attn_norm",
    "crossattention.attention.query": "cross_attn_q",
    "crossattention.attention.key": "cross_attn_k",
    "crossattention.attention.value": "cross_attn_v",
    "crossattention.output.dense": "cross_attn_out",
    "crossattention.output.LayerNorm": "cross_attn_norm",
    "intermediate_query.dense": "ffn_up",
    "output_query.dense": "ffn_down",
    "output_query.LayerNorm": "ffn_norm",
}


def granite_speech_plus(audio, text):
    """Concatenates the outputs and the features of `feature_layer`."""
    return granite_speech(audio, text, "GraniteSpeechPlus", {"cat_hidden_layers": audio.key("feature_layer")}, 40)


def granite_speech(audio, text, kind="GraniteSpeech", more={}, n_frames=64):
    tensors, n_embd, n_in = audio.tensors, audio.key("embedding_length"), audio.key("num_mel_bins")
    for il in range(audio.key("block_count")):
        block = f"a.blk.{il}"
        tensors[f"{block}.attn_kv.weight"] = np.concatenate([tensors.pop(f"{block}.attn_{part}.weight") for part in "kv"])
        tensors[f"{block}.attn_rel_pos_emb.weight"] = tensors.pop(f"{block}.attn_rel_pos_emb")
    settings = text_config(text) | {
        "model_type": "granite",
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "embedding_multiplier": text.key("embedding_scale") or 1.0,
        "residual_multiplier": text.key("residual_scale") or 1.0,
        "attention_multiplier": text.key("attention.scale") or text_config(text)["head_dim"] ** -0.5,
        "logits_scaling": text.key("logit_scale"),
    }
    settings.pop("head_dim")
    ears = {
        "input_dim": n_in,
        "num_layers": audio.key("block_count"),
        "hidden_dim": n_embd,
        "feedforward_mult": audio.key("feed_forward_length") // n_embd,
        "num_heads": audio.key("attention.head_count"),
        "output_dim": len(tensors["a.enc_ctc_out.weight"]),
        "context_size": audio.key("chunk_size"),
        "max_pos_emb": audio.key("max_pos_emb"),
        "conv_kernel_size": audio.key("conv_kernel_size"),
    } | more
    queries = {
        "model_type": "blip_2_qformer",
        "hidden_size": n_embd,
        "encoder_hidden_size": n_embd * (1 + len(more.get("cat_hidden_layers", []))),
        "num_hidden_layers": 2,
        "num_attention_heads": audio.key("projector.head_count"),
        "intermediate_size": len(tensors["a.proj_blk.0.ffn_up.weight"]),
        "cross_attention_frequency": 1,
    }
    config = getattr(transformers, f"{kind}Config")(
        text_config=settings,
        encoder_config=ears,
        projector_config=queries,
        window_size=audio.key("projector.window_size"),
        downsample_rate=audio.key("projector.downsample_rate"),
        audio_token_index=PLACEHOLDER,
        has_lora_adapter=False,
    )
    model = getattr(transformers, f"{kind}ForConditionalGeneration")._from_config(config, attn_implementation="eager").double().eval()
    names = {"input_linear": "a.input_projection", "out": "a.enc_ctc_out", "out_mid": "a.enc_ctc_out_mid"}
    names |= {f"layers.{{}}.{module}": f"a.blk.{{}}.{tensor}" for module, tensor in GRANITE_BLOCK.items()}
    of_queries = {f"qformer.encoder.layer.{{}}.{module}": f"a.proj_blk.{{}}.{tensor}" for module, tensor in QFORMER_BLOCK.items()}
    of_queries |= {"query": "a.proj_query", "qformer.layernorm": "a.proj_norm", "linear": "a.proj_linear"}
    names = within("model.encoder", names) | within("model.projector", of_queries) | within("model.language_model", TEXT | LLAMA)
    load(model, names, tensors | text.tensors, text_config(text)["head_dim"])
    model.lm_head.weight = model.get_input_embeddings().weight
    # Files store scale and shift instead of the statistics.
    for layer in model.model.encoder.layers:
        norm = layer.conv.batch_norm
        norm.running_var.fill_(1 - norm.eps)
    # The last frame is unpaired.
    features = spectrogram(n_in // 2, n_frames).T.reshape(1, n_frames // 2, n_in)
    rows = model.model.get_audio_features(features).pooler_output[0]
    # Unlike the class of the language model, the class of the whole model does not divide logits by their scale.
    language_model = transformers.GraniteForCausalLM._from_config(config.text_config, attn_implementation="eager").double().eval()
    language_model.model, language_model.lm_head = model.model.language_model, model.lm_head
    tokens, logits = logits_around(language_model, rows, model.get_input_embeddings())
    return rows, tokens, logits


CONFORMER = {
    "subsampling.layers.{}": "a.conv1d.{}",
    "subsampling.linear": "a.pre_encode.out",
    "layers.{}.norm_feed_forward1": "a.blk.{}.ffn_norm",
    "layers.{}.feed_forward1.linear1": "a.blk.{}.ffn_up",
    "layers.{}.feed_forward1.linear2": "a.blk.{}.ffn_down",
    "layers.{}.norm_self_att": "a.blk.{}.ln1",
    "layers.{}.self_attn.q_proj": "a.blk.{}.attn_q",
    "layers.{}.self_attn.k_proj": "a.blk.{}.attn_k",
    "layers.{}.self_attn.v_proj": "a.blk.{}.attn_v",
    "layers.{}.self_attn.o_proj": "a.blk.{}.attn_out",
    "layers.{}.self_attn.relative_k_proj": "a.blk.{}.linear_pos",
    "layers.{}.self_attn.bias_u": "a.blk.{}.pos_bias_u",
    "layers.{}.self_attn.bias_v": "a.blk.{}.pos_bias_v",
    "layers.{}.norm_conv": "a.blk.{}.norm_conv",
    "layers.{}.conv.pointwise_conv1": "a.blk.{}.conv_pw1",
    "layers.{}.conv.depthwise_conv": "a.blk.{}.conv_dw",
    "layers.{}.conv.norm": "a.blk.{}.conv_norm",
    "layers.{}.conv.norm.running_mean": "a.blk.{}.conv_norm_mean",
    "layers.{}.conv.norm.running_var": "a.blk.{}.conv_norm_var",
    "layers.{}.conv.pointwise_conv2": "a.blk.{}.conv_pw2",
    "layers.{}.norm_feed_forward2": "a.blk.{}.ffn_norm_1",
    "layers.{}.feed_forward2.linear1": "a.blk.{}.ffn_up_1",
    "layers.{}.feed_forward2.linear2": "a.blk.{}.ffn_down_1",
    "layers.{}.norm_out": "a.blk.{}.ln2",
}


class Conformer(torch.nn.Module):
    """NeMo's conformer with a projector, and a language model that transformers does not combine with it."""

    def __init__(self, audio, projector, language_model):
        super().__init__()
        tensors = audio.tensors
        config = transformers.ParakeetEncoderConfig(
            hidden_size=audio.key("embedding_length"),
            num_hidden_layers=audio.key("block_count"),
            num_attention_heads=audio.key("attention.head_count"),
            intermediate_size=len(tensors["a.blk.0.ffn_up.weight"]),
            conv_kernel_size=tensors["a.blk.0.conv_dw.weight"].shape[1],
            subsampling_conv_channels=len(tensors["a.conv1d.0.weight"]),
            num_mel_bins=audio.key("num_mel_bins"),
            scale_input=False,
        )
        self.encoder = transformers.ParakeetEncoder._from_config(config, attn_implementation="eager")
        n_freq = tensors["a.pre_encode.out.weight"].shape[1] // config.subsampling_conv_channels
        # The published class expects a multiple of 8 mel filters.
        self.encoder.subsampling.linear = torch.nn.Linear(n_freq * config.subsampling_conv_channels, config.hidden_size)
        self.projector, self.language_model = projector, language_model

    def tie_weights(self):
        self.language_model.tie_weights()

    def rows(self, features):
        """Returns the rows of frames [n_mel, T]."""
        return self.projector(self.encoder(features.T[None]).last_hidden_state[0])


def conformer(audio, text, projector, of_projector, language_model, text_names):
    model = Conformer(audio, projector, language_model).double().eval()
    # The published class computes the frequencies in float32.
    width = audio.key("embedding_length")
    model.encoder.encode_positions.forward = lambda x: sinusoids_in_turn(x.shape[1], width)
    names = within("encoder", CONFORMER) | within("projector", of_projector) | within("language_model.model", text_names)
    kept = within("encoder", CONFORMER)["encoder.layers.{}.conv.norm.running_mean"].format(0) in audio.tensors
    if not kept:
        names = {name: tensor for name, tensor in names.items() if ".running_" not in name}
    load(model, names, audio.tensors | text.tensors, text_config(text)["head_dim"])
    if not kept:
        # The statistics are folded into scale and shift in files.
        for layer in model.encoder.layers:
            layer.conv.norm.running_var.fill_(1 - layer.conv.norm.eps)
    return model


def sinusoids_in_turn(n, width):
    distances = torch.arange(n - 1, -n, -1).double()[:, None]
    angles = distances * 10000.0 ** (-torch.arange(0, width, 2).double() / width)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).reshape(1, 2 * n - 1, width)


def lfm2a(audio, text):
    from record_media_families import LFM2, lfm2_text

    width, n_out = audio.key("embedding_length"), audio.key("projection_dim")
    n_mid = len(audio.tensors["mm.a.mlp.1.weight"])
    projector = torch.nn.Sequential(torch.nn.LayerNorm(width), torch.nn.Linear(width, n_mid), torch.nn.GELU(), torch.nn.Linear(n_mid, n_out))
    settings = lfm2_text(text)
    settings.pop("model_type")
    language_model = transformers.Lfm2ForCausalLM._from_config(transformers.Lfm2Config(**settings), attn_implementation="eager")
    model = conformer(audio, text, projector, {"{}": "mm.a.mlp.{}"}, language_model, TEXT | LFM2)
    # Two chunks.
    features, chunk = spectrogram(audio.key("num_mel_bins"), 203), audio.key("context_length")
    rows = torch.cat([model.rows(features[:, :chunk]), model.rows(features[:, chunk:])])
    tokens, logits = logits_around(model.language_model, rows, model.language_model.get_input_embeddings())
    return rows, tokens, logits


class SquaredReluProjector(torch.nn.Module):
    """The published audio projector of Nemotron 3 Omni."""

    def __init__(self, width, n_mid, n_out):
        super().__init__()
        self.norm = torch.nn.RMSNorm(width, eps=1e-6)
        self.linear1, self.linear2 = torch.nn.Linear(width, n_mid, bias=False), torch.nn.Linear(n_mid, n_out, bias=False)

    def forward(self, x):
        return self.linear2(torch.relu(self.linear1(self.norm(x))) ** 2)


NEMOTRON_H = {
    "embeddings": "token_embd",
    "norm_f": "output_norm",
    "layers.{}.norm": "blk.{}.attn_norm",
    "layers.{}.mixer.in_proj": "blk.{}.ssm_in",
    "layers.{}.mixer.conv1d": "blk.{}.ssm_conv1d",
    "layers.{}.mixer.dt_bias": "blk.{}.ssm_dt.bias",
    "layers.{}.mixer.A_log": "blk.{}.ssm_a",
    "layers.{}.mixer.D": "blk.{}.ssm_d",
    "layers.{}.mixer.norm": "blk.{}.ssm_norm",
    "layers.{}.mixer.out_proj": "blk.{}.ssm_out",
}


def nemotron_h(text):
    """All layers are Mamba 2 mixers."""
    n_ssm, inner = text.key("ssm.time_step_rank"), text.key("ssm.inner_size")
    settings = text_config(text) | {
        "layers_block_type": ["mamba"] * text.key("block_count"),
        "num_key_value_heads": 1,
        "intermediate_size": 1,
        "layer_norm_epsilon": text.key("attention.layer_norm_epsilon"),
        "use_conv_bias": "blk.0.ssm_conv1d.bias" in text.tensors,
        "mamba_num_heads": n_ssm,
        "mamba_head_dim": inner // n_ssm,
        "ssm_state_size": text.key("ssm.state_size"),
        "n_groups": text.key("ssm.group_count"),
        "conv_kernel": text.key("ssm.conv_kernel"),
        "use_cache": False,
    }
    # Files store -exp(A_log).
    for name in [name for name in text.tensors if name.endswith("ssm_a")]:
        text.tensors[name] = np.log(-text.tensors[name])
    return transformers.NemotronHForCausalLM._from_config(transformers.NemotronHConfig(**settings), attn_implementation="eager")


def parakeet(audio, text):
    projector = SquaredReluProjector(audio.key("embedding_length"), len(audio.tensors["mm.a.mlp.1.weight"]), audio.key("projection_dim"))
    of_projector = {"norm": "mm.a.norm_pre", "linear1": "mm.a.mlp.1", "linear2": "mm.a.mlp.2"}
    model = conformer(audio, text, projector, of_projector, nemotron_h(text), NEMOTRON_H)
    # The published class has a separate output matrix.
    model.language_model.lm_head.weight = model.language_model.get_input_embeddings().weight
    rows = model.rows(spectrogram(audio.key("num_mel_bins"), 61))
    tokens, logits = logits_around(model.language_model, rows, model.language_model.get_input_embeddings())
    return rows, tokens, logits


def gemma4ua(audio, text):
    from record_media_families import GEMMA4, divide_frequencies, gemma4_text, model_of

    settings, size = gemma4_text(text), audio.key("embedding_length")
    settings.pop("hidden_size_per_layer_input")
    ears = {"audio_samples_per_token": size, "audio_embed_dim": size, "output_proj_dims": size, "rms_norm_eps": audio.key("attention.layer_norm_epsilon")}
    config = transformers.Gemma4UnifiedConfig(
        text_config=settings, vision_config=None, audio_config=ears, audio_token_id=PLACEHOLDER, tie_word_embeddings=True
    )
    model = model_of(config).double().eval()
    divide_frequencies(model.model.language_model.rotary_emb, text)
    names = within("model.language_model", TEXT | GEMMA4)
    names["model.embed_audio.embedding_projection"] = "mm.a.input_projection"
    load(model, names, audio.tensors | text.tensors, settings["head_dim"])
    samples = spectrogram(160, 10).T.reshape(-1)
    features = torch.nn.functional.pad(samples, (0, -len(samples) % size)).reshape(1, -1, size)
    mask = torch.ones(features.shape[:2], dtype=torch.bool)
    rows = model.model.get_audio_features(features, mask).pooler_output[0]
    text_ids = [(i * 37 + 11) % PLACEHOLDER for i in range(BEFORE + AFTER)]
    tokens = text_ids[:BEFORE] + [PLACEHOLDER] * len(rows) + text_ids[BEFORE:]
    logits = model(input_ids=torch.tensor([tokens]), input_features=features, input_features_mask=mask).logits[0]
    return rows, tokens, logits


class DotsNote(torch.nn.Module):
    """The encoder of Dots 3 Note with a Qwen2 language model."""

    def __init__(self, audio, text):
        super().__init__()
        settings = text_config(text)
        settings.pop("head_dim")
        rope = {"rope_type": "default", "rope_theta": 10000.0}
        kind = transformers.models.dots3_note.configuration_dots3_note.Dots3NoteAudioConfig
        n_out = audio.key("projection_dim")
        config = kind(
            hidden_size=audio.key("embedding_length"),
            intermediate_size=audio.key("feed_forward_length"),
            num_hidden_layers=audio.key("block_count"),
            num_attention_heads=audio.key("attention.head_count"),
            feature_size=audio.key("num_mel_bins"),
            downsample_hidden_size=audio.tensors["a.conv2d.1.weight"].shape[0],
            adapter_input_size=audio.key("embedding_length"),
            adapter_out_dim=n_out,
            rope_parameters=rope | {"partial_rotary_factor": 0.5},
        )
        ears = transformers.models.dots3_note.modeling_dots3_note.Dots3NoteAudioModel
        self.audio_tower = ears._from_config(config, attn_implementation="eager")
        self.language_model = transformers.Qwen2ForCausalLM._from_config(
            transformers.Qwen2Config(**settings | {"rope_parameters": rope}), attn_implementation="eager"
        )
        for name, module in self.audio_tower.named_modules():
            # The epsilon is hard-coded in the published class.
            if hasattr(module, "variance_epsilon"):
                module.variance_epsilon = audio.key("attention.layer_norm_epsilon")

    def tie_weights(self):
        self.language_model.tie_weights()


DOTS3NOTE = {
    "conv_stem.convs.0": "a.conv2d.1",
    "conv_stem.convs.1": "a.conv2d.2",
    "conv_stem.convs.2": "a.conv2d.3",
    "conv_stem.conv_out": "a.conv_out",
    "layer_norm": "a.post_ln",
    "adapter.norm": "mm.a.norm_pre",
    "adapter.fc1": "mm.a.mlp.1",
    "adapter.fc2": "mm.a.mlp.3",
    "layers.{}.input_layernorm": "a.blk.{}.ln1",
    "layers.{}.post_attention_layernorm": "a.blk.{}.ln2",
    "layers.{}.self_attn.q_proj": "a.blk.{}.attn_q",
    "layers.{}.self_attn.k_proj": "a.blk.{}.attn_k",
    "layers.{}.self_attn.v_proj": "a.blk.{}.attn_v",
    "layers.{}.self_attn.o_proj": "a.blk.{}.attn_out",
    "layers.{}.mlp.gate_up_proj": "a.blk.{}.ffn_gate_up",
    "layers.{}.mlp.down_proj": "a.blk.{}.ffn_down",
}


def dots3note_a(audio, text):
    for il in range(audio.key("block_count")):
        for suffix in ("weight", "bias"):
            parts = [audio.tensors.pop(f"a.blk.{il}.ffn_{part}.{suffix}") for part in ("gate", "up")]
            audio.tensors[f"a.blk.{il}.ffn_gate_up.{suffix}"] = np.concatenate(parts)
    model = DotsNote(audio, text).double().eval()
    names = within("audio_tower", DOTS3NOTE) | within("language_model.model", TEXT | QWEN)
    load(model, names, audio.tensors | text.tensors, text_config(text)["head_dim"])
    # The second chunk ends within a frame, and within the position of this frame.
    whole, n_frames, rest = 8 * audio.key("context_length"), 136, 60
    features = spectrogram(audio.key("num_mel_bins"), n_frames)
    padded = torch.nn.functional.pad(features, (0, 2 * whole - n_frames), value=1.0)
    lengths = torch.tensor([160 * whole, 160 * (n_frames - whole) + rest])
    rows = model.audio_tower(padded.reshape(-1, 2, whole).transpose(0, 1), chunk_sample_lengths=lengths).pooler_output
    tokens, logits = logits_around(model.language_model, rows, model.language_model.get_input_embeddings())
    return rows, tokens, logits


FAMILIES = {
    "dots3note_a": dots3note_a,
    "lfm2a": lfm2a,
    "parakeet": parakeet,
    "gemma4ua": gemma4ua,
    "qwen2.5o": qwen25o,
    "granite_speech": granite_speech,
    "granite_speech-plus": granite_speech_plus,
    "qwen2a": qwen2a,
    "qwen3a": qwen3a,
    "voxtral": voxtral,
    "ultravox": ultravox,
    "musicflamingo": musicflamingo,
    "gemma4a": gemma4a,
    "glma": glma,
}


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
    import record_audio_stacked

    FAMILIES |= record_audio_stacked.FAMILIES
    for family in sys.argv[2:] or FAMILIES:
        record(Path(sys.argv[1]), family)
