#!/usr/bin/env python3
"""Records the rows of an image and the logits around them with the Python package `transformers`.

    record_media.py DIRECTORY [NAME]...

DIRECTORY is `tests/data/encoders`. For each NAME it contains `NAME.header.gguf`, the header of an encoder, and
`NAME-text.header.gguf`, the header of the language model. Weights are derived from a seed and from tensor names, as in
`engine/src/gguf/seeded.rs`, and so are the pixels. Writes `NAME.rows`, the rows that replace the placeholder tokens, and
`NAME.logits`, the tokens and their logits. All values are computed in 64 bits.

    record_media.py DIRECTORY sizes

Writes `sizes.txt`: image sizes before and after Qwen's resizing.

    record_media.py DIRECTORY targets

Writes `targets.txt`: image sizes before and after the resizing of Gemma 4, GLM 5, Kimi, MiniCPM-V, Muse Glimmer,
Phi-4, Pixtral, and Youtu-VL. Also writes the tile grids of Idefics 3, InternVL, LFM2-VL, Llama 4, MiniCPM-V, and
Step3-VL.

    record_media.py DIRECTORY tiles

Writes rows and logits of prompts with special images: `hunyuanvl-two` has an image twice. In `idefics3-tiles`,
`llava-tiles`, `granite-tiles`, and `step3vl-tiles`, the image is split into tiles. Also writes `listed.txt`: image
sizes, each with its number of rows for the tiles of LLaVA 1.6.

Needs: pip install torch transformers timm numpy (about 5 GB with torch's libraries; a CPU is enough).
"""

import re
import struct
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from record_transformers import Gguf, changed

# Placeholder token of a row, and the number of tokens before and after the image.
PLACEHOLDER, BEFORE, AFTER = 127, 14, 10


def splitmix64(x):
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def hash_of_name(name):
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return h


def seeded(name, shape, seed=1):
    """Returns the weights of a tensor."""
    numbers = np.uint64(hash_of_name(name) ^ seed) + np.arange(np.prod(shape), dtype=np.uint64)
    u = (splitmix64(numbers) >> np.uint64(40)).astype(np.float32) * np.float32(1 / 2**24)
    v = (np.float32(2) * u - np.float32(1)) * np.float32(0.1) * np.float32(1.7320508)
    if "ssm_a" in name:
        v = -np.abs(v)
    if "norm" in name and ".weight" in name:
        v = v + np.float32(1)
    if name.endswith("_var"):
        v = np.float32(1) + np.abs(v)
    # Divisors of frequencies are at least 1, and clamping ranges contain 0.
    if name.startswith("rope_freqs"):
        v = np.float32(1) + np.float32(8) * np.abs(v)
    if name.endswith("_min"):
        v = np.float32(-0.5) - np.abs(v)
    if name.endswith("_max"):
        v = np.float32(0.5) + np.abs(v)
    return v.reshape(shape[::-1]).astype(np.float64)


class Seeded(Gguf):
    """A header whose tensors are filled with seeded weights."""

    def tensor(self, path, name, start, shape, kind, offset):
        return seeded(name, shape) * self.keys.get("fixture.weight_scale", 1.0)

    def key(self, key):
        prefix = "clip.vision" if self.keys["general.architecture"] == "clip" else self.keys["general.architecture"]
        return self.keys.get(f"{prefix}.{key}")


def pixels(width, height):
    """Returns the pixels: noise, because smooth images hide swapped patches."""
    numbers = np.arange(width * height * 3, dtype=np.uint64)
    return (splitmix64(numbers) >> np.uint64(56)).astype(np.uint8).reshape(height, width, 3)


# Width and height of images for encoders that accept any size.
SIZE = (112, 80)
SIZES = {"lfm2": (80, 56), "gemma4v": (120, 72), "gemma4uv": (120, 72), "resampler": (72, 56), "deepseekocr": (64, 64), "deepseekocr2": (64, 64), "phi4": (56, 40), "step3vl": (64, 64)}
FIXED = ("gemma3", "idefics3", "internvl", "mlp", "llama4", "granite4_vision", "ldp", "ldpv2", "nemotron_v2_vl", "janus_pro", "gemma3nv")


VISION = {
    "embeddings.patch_embedding": "v.patch_embd",
    "embeddings.position_embedding": "v.position_embd",
    "post_layernorm": "v.post_ln",
    "encoder.layers.{}.layer_norm1": "v.blk.{}.ln1",
    "encoder.layers.{}.layer_norm2": "v.blk.{}.ln2",
    "encoder.layers.{}.self_attn.q_proj": "v.blk.{}.attn_q",
    "encoder.layers.{}.self_attn.k_proj": "v.blk.{}.attn_k",
    "encoder.layers.{}.self_attn.v_proj": "v.blk.{}.attn_v",
    "encoder.layers.{}.self_attn.out_proj": "v.blk.{}.attn_out",
    "encoder.layers.{}.mlp.fc1": "v.blk.{}.ffn_up",
    "encoder.layers.{}.mlp.fc2": "v.blk.{}.ffn_down",
}

TEXT = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "layers.{}.input_layernorm": "blk.{}.attn_norm",
    "layers.{}.self_attn.q_proj": "blk.{}.attn_q",
    "layers.{}.self_attn.k_proj": "blk.{}.attn_k",
    "layers.{}.self_attn.v_proj": "blk.{}.attn_v",
    "layers.{}.self_attn.o_proj": "blk.{}.attn_output",
    "layers.{}.mlp.gate_proj": "blk.{}.ffn_gate",
    "layers.{}.mlp.up_proj": "blk.{}.ffn_up",
    "layers.{}.mlp.down_proj": "blk.{}.ffn_down",
}

# The norms of Gemma add 1 to the published weights.
GEMMA = {
    "layers.{}.input_layernorm": "blk.{}.attn_norm|minus-one",
    "layers.{}.self_attn.q_norm": "blk.{}.attn_q_norm|minus-one",
    "layers.{}.self_attn.k_norm": "blk.{}.attn_k_norm|minus-one",
    "layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm|minus-one",
    "layers.{}.pre_feedforward_layernorm": "blk.{}.ffn_norm|minus-one",
    "layers.{}.post_feedforward_layernorm": "blk.{}.post_ffw_norm|minus-one",
    "norm": "output_norm|minus-one",
}

LLAMA = {
    "layers.{}.self_attn.q_proj": "blk.{}.attn_q|halves",
    "layers.{}.self_attn.k_proj": "blk.{}.attn_k|halves",
    "layers.{}.post_attention_layernorm": "blk.{}.ffn_norm",
}


def within(prefix, names):
    return {f"{prefix}.{name}": tensor for name, tensor in names.items()}


def vision_config(g):
    return {
        "hidden_size": g.key("embedding_length"),
        "intermediate_size": g.key("feed_forward_length"),
        "num_hidden_layers": g.key("block_count"),
        "num_attention_heads": g.key("attention.head_count"),
        "image_size": g.key("image_size"),
        "patch_size": g.key("patch_size"),
        "layer_norm_eps": g.key("attention.layer_norm_epsilon"),
    }


def text_config(g):
    return {
        "hidden_size": g.key("embedding_length"),
        "intermediate_size": g.key("feed_forward_length"),
        "num_hidden_layers": g.key("block_count"),
        "num_attention_heads": g.key("attention.head_count"),
        "num_key_value_heads": g.key("attention.head_count_kv"),
        "head_dim": g.key("attention.key_length") or g.key("embedding_length") // g.key("attention.head_count"),
        "vocab_size": g.key("vocab_size"),
        "rms_norm_eps": g.key("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": g.key("context_length"),
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "tie_word_embeddings": True,
    }


def gemma3(vision, text):
    n_swa, period, n_layer = text.key("attention.sliding_window"), text.key("attention.sliding_window_pattern"), text.key("block_count")
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    settings = text_config(text) | {
        "sliding_window": n_swa,
        "layer_types": ["sliding_attention" if il % period < period - 1 else "full_attention" for il in range(n_layer)],
        "query_pre_attn_scalar": text.key("attention.key_length"),
        "rope_parameters": {"full_attention": rope, "sliding_attention": rope},
    }
    side = vision.key("image_size") // vision.key("patch_size") // vision.key("projector.scale_factor")
    config = transformers.Gemma3Config(
        text_config=settings, vision_config=vision_config(vision), mm_tokens_per_image=side * side, image_token_index=PLACEHOLDER, tie_word_embeddings=True
    )
    model = transformers.Gemma3ForConditionalGeneration._from_config(config, attn_implementation="eager")
    names = within("model.vision_tower", VISION) | within("model.language_model", TEXT | GEMMA)
    names["model.multi_modal_projector.mm_input_projection_weight"] = "mm.input_projection.weight"
    names["model.multi_modal_projector.mm_soft_emb_norm"] = "mm.soft_emb_norm|minus-one"
    return model, names, lambda image, ids: {"pixel_values": image, "token_type_ids": (ids == PLACEHOLDER).long()}


def idefics3(vision, text):
    settings = text_config(text) | {"model_type": "llama", "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
    scale = vision.key("projector.scale_factor")
    config = transformers.SmolVLMConfig(
        text_config=settings, vision_config=vision_config(vision), scale_factor=scale, image_token_id=PLACEHOLDER, tie_word_embeddings=True
    )
    model = transformers.SmolVLMForConditionalGeneration._from_config(config, attn_implementation="eager")
    names = within("model.vision_model", VISION) | within("model.text_model", TEXT | LLAMA)
    names["model.connector.modality_projection.proj"] = "mm.model.fc"
    return model, names, lambda image, ids: {"pixel_values": image[None]}


QWEN_VISION = {
    "patch_embed.proj": "v.patch_embd|frames",
    "blocks.{}.norm1": "v.blk.{}.ln1",
    "blocks.{}.norm2": "v.blk.{}.ln2",
    "blocks.{}.attn.qkv": "v.blk.{}.attn_q|qkv",
    "blocks.{}.attn.proj": "v.blk.{}.attn_out",
    "blocks.{}.mlp.fc1": "v.blk.{}.ffn_up",
    "blocks.{}.mlp.fc2": "v.blk.{}.ffn_down",
    "merger.ln_q": "v.post_ln",
    "merger.mlp.{}": "mm.{}",
}

QWEN25_VISION = QWEN_VISION | {
    "blocks.{}.mlp.gate_proj": "v.blk.{}.ffn_gate",
    "blocks.{}.mlp.up_proj": "v.blk.{}.ffn_up",
    "blocks.{}.mlp.down_proj": "v.blk.{}.ffn_down",
}

QWEN3_VISION = QWEN_VISION | {
    "pos_embed": "v.position_embd",
    "blocks.{}.mlp.linear_fc1": "v.blk.{}.ffn_up",
    "blocks.{}.mlp.linear_fc2": "v.blk.{}.ffn_down",
    "merger.norm": "v.post_ln",
    "merger.linear_fc1": "mm.0",
    "merger.linear_fc2": "mm.2",
}

QWEN = {"layers.{}.post_attention_layernorm": "blk.{}.ffn_norm"}

QWEN3 = QWEN | {"layers.{}.self_attn.q_norm": "blk.{}.attn_q_norm", "layers.{}.self_attn.k_norm": "blk.{}.attn_k_norm"}


def qwen_inputs(vision):
    """Returns a function from a normalized image to the model arguments: rows with both frames of each patch, in block
    order."""
    patch, merge = vision.key("patch_size"), vision.key("spatial_merge_size") or 2

    def inputs(image, ids):
        _, channels, height, width = image.shape
        rows, columns = height // patch, width // patch
        split = image.expand(2, -1, -1, -1).reshape(2, channels, rows // merge, merge, patch, columns // merge, merge, patch)
        patches = split.permute(2, 5, 3, 6, 1, 0, 4, 7).reshape(rows * columns, -1)
        return {
            "pixel_values": patches,
            "image_grid_thw": torch.tensor([[1, rows, columns]]),
            "mm_token_type_ids": (ids == PLACEHOLDER).long(),
        }

    return inputs


def qwen_text(text):
    sections = text.key("rope.dimension_sections")[:3]
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": list(sections)}
    return text_config(text) | {"rope_parameters": rope}


def qwen_vision(vision):
    return {
        "depth": vision.key("block_count"),
        "num_heads": vision.key("attention.head_count"),
        "patch_size": vision.key("patch_size"),
        "spatial_merge_size": vision.key("spatial_merge_size") or 2,
        "temporal_patch_size": 2,
    }


def qwen_model(kind, vision, settings, text_settings, names, text_names):
    special = {"image_token_id": PLACEHOLDER, "video_token_id": 126, "vision_start_token_id": 125, "vision_end_token_id": 124}
    config = getattr(transformers, f"{kind}Config")(text_config=text_settings, vision_config=settings, tie_word_embeddings=True, **special)
    model = getattr(transformers, f"{kind}ForConditionalGeneration")._from_config(config, attn_implementation="eager")
    # The epsilon is hard-coded in the published classes.
    for module in model.model.visual.modules():
        for name in ("eps", "variance_epsilon"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, vision.key("attention.layer_norm_epsilon"))
    return model, within("model.visual", names) | within("model.language_model", TEXT | text_names), qwen_inputs(vision)


def qwen2vl(vision, text):
    settings = qwen_vision(vision) | {"embed_dim": vision.key("embedding_length"), "hidden_size": vision.key("projection_dim"), "mlp_ratio": 4}
    return qwen_model("Qwen2VL", vision, settings, qwen_text(text), QWEN_VISION, QWEN)


def qwen25vl(vision, text):
    interval, depth = vision.key("n_wa_pattern"), vision.key("block_count")
    settings = qwen_vision(vision) | {
        "hidden_size": vision.key("embedding_length"),
        "intermediate_size": vision.key("feed_forward_length"),
        "out_hidden_size": vision.key("projection_dim"),
        "window_size": vision.key("window_size"),
        "fullatt_block_indexes": [il for il in range(depth) if (il + 1) % interval == 0],
    }
    return qwen_model("Qwen2_5_VL", vision, settings, qwen_text(text), QWEN25_VISION, QWEN)


# The norms of Qwen3.5 add 1 to the published weights.
QWEN35 = {
    "layers.{}.input_layernorm": "blk.{}.attn_norm|minus-one",
    "layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm|minus-one",
    "layers.{}.self_attn.q_norm": "blk.{}.attn_q_norm|minus-one",
    "layers.{}.self_attn.k_norm": "blk.{}.attn_k_norm|minus-one",
    "layers.{}.linear_attn.in_proj_qkv": "blk.{}.attn_qkv",
    "layers.{}.linear_attn.in_proj_z": "blk.{}.attn_gate",
    "layers.{}.linear_attn.in_proj_b": "blk.{}.ssm_beta",
    "layers.{}.linear_attn.in_proj_a": "blk.{}.ssm_alpha",
    "layers.{}.linear_attn.conv1d": "blk.{}.ssm_conv1d",
    "layers.{}.linear_attn.A_log": "blk.{}.ssm_a",
    "layers.{}.linear_attn.dt_bias": "blk.{}.ssm_dt.bias",
    "layers.{}.linear_attn.norm": "blk.{}.ssm_norm",
    "layers.{}.linear_attn.out_proj": "blk.{}.ssm_out",
    "norm": "output_norm|minus-one",
}


def qwen35_text(text):
    """Returns the settings of Qwen3.5. Also converts tensors to their published form."""
    interval, n_layer = text.key("full_attention_interval"), text.key("block_count")
    settings = qwen_text(text) | {
        "layer_types": ["linear_attention" if (il + 1) % interval else "full_attention" for il in range(n_layer)],
        "linear_conv_kernel_dim": text.key("ssm.conv_kernel"),
        "linear_key_head_dim": text.key("ssm.state_size"),
        "linear_value_head_dim": text.key("ssm.state_size"),
        "linear_num_key_heads": text.key("ssm.group_count"),
        "linear_num_value_heads": text.key("ssm.time_step_rank"),
    }
    settings["rope_parameters"]["partial_rotary_factor"] = text.key("rope.dimension_count") / settings["head_dim"]
    for il in range(n_layer):
        # Files contain the decays, and possibly a form of a projection that is unused here.
        text.tensors.pop(f"blk.{il}.ssm_in.weight", None)
        decays = text.tensors.get(f"blk.{il}.ssm_a")
        if decays is not None:
            text.tensors[f"blk.{il}.ssm_a"] = np.log(-decays)
    return settings


def qwen35(vision, text):
    return qwen_model("Qwen3_5", vision, qwen3_vision(vision), qwen35_text(text), QWEN3_VISION, QWEN35)


def qwen3_vision(vision):
    return qwen_vision(vision) | {
        "hidden_size": vision.key("embedding_length"),
        "intermediate_size": vision.key("feed_forward_length"),
        "out_hidden_size": vision.key("projection_dim"),
        "num_position_embeddings": (vision.key("image_size") // vision.key("patch_size")) ** 2,
    }


def qwen3vl(vision, text):
    deep = [il for il, is_deep in enumerate(vision.key("is_deepstack_layers")) if is_deep]
    names = dict(QWEN3_VISION)
    for i, il in enumerate(deep):
        parts = {"norm": "norm", "linear_fc1": "fc1", "linear_fc2": "fc2"}
        names |= {f"deepstack_merger_list.{i}.{part}": f"v.deepstack.{il}.{tensor}" for part, tensor in parts.items()}
    settings = qwen3_vision(vision) | {"deepstack_visual_indexes": deep}
    return qwen_model("Qwen3VL", vision, settings, qwen_text(text), names, QWEN3)


FAMILIES = {
    "gemma3": gemma3,
    "idefics3": idefics3,
    "qwen2vl_merger": qwen2vl,
    "qwen2.5vl_merger": qwen25vl,
    "qwen3vl_merger": qwen3vl,
    "qwen35": qwen35,
}


def families():
    import record_media_families
    import record_media_learned
    import record_media_mobile
    import record_media_newer
    import record_media_ocr
    import record_media_restated
    import record_media_windows

    newer = record_media_newer.FAMILIES | record_media_learned.FAMILIES | record_media_ocr.FAMILIES | record_media_windows.FAMILIES
    newer |= record_media_mobile.FAMILIES
    return FAMILIES | record_media_families.FAMILIES | newer | record_media_restated.FAMILIES


def combined(tensors, name, changes, suffix):
    """Returns the parameter that consists of several tensors of the file, or None."""
    if "frames" in changes and suffix == "weight":
        frames = [tensors[f"{name}.weight"], tensors[f"{name}.weight.1"]]
        side = round((frames[0].shape[1] / 3) ** 0.5)
        return np.stack([frame.reshape(-1, 3, side, side) for frame in frames], axis=2), [f"{name}.weight", f"{name}.weight.1"]
    if "pixels" in changes and (suffix == "weight" or "norm" in name):
        # The file stores color planes.
        planes = tensors[f"{name}.{suffix}"]
        side = round((planes.shape[-1] / 3) ** 0.5)
        return np.moveaxis(planes.reshape(-1, 3, side, side), 1, 3).reshape(planes.shape), [f"{name}.{suffix}"]
    if "qkv" in changes:
        parts = [f"{name.replace('attn_q', part)}.{suffix}" for part in ("attn_q", "attn_k", "attn_v")]
        return np.concatenate([tensors[part] for part in parts]), parts
    return None


def load(model, names, tensors, head_dim):
    """Replaces the parameters of the model. Parameters that the graph does not use keep their values."""
    unused, state = set(tensors), model.state_dict()
    for parameter, value in state.items():
        base, _, suffix = parameter.rpartition(".")
        base, suffix = (base, suffix) if suffix in ("weight", "bias") else (parameter, "")
        name = names.get(base, names.get(re.sub(r"(?<=\.)\d+(?=\.|$)", "{}", base)))
        if not name:
            print(f"{parameter}: not in the file")
            continue
        name, *changes = name.split("|")
        numbers = re.findall(r"(?<=\.)\d+(?=\.|$)", base)
        name = name.replace("{}", numbers[0] if numbers else "")
        several = combined(tensors, name, changes, suffix)
        if several is not None:
            array, parts = several
            unused.difference_update(parts)
            state[parameter] = torch.from_numpy(np.ascontiguousarray(array.reshape(value.shape)))
            continue
        name += f".{suffix}" if suffix else ""
        array = tensors[name]
        unused.discard(name)
        for change in (change for change in changes if change not in ("frames", "pixels")):
            array = changed(array, change, head_dim, value.shape)
        state[parameter] = torch.from_numpy(np.ascontiguousarray(array.reshape(value.shape)))
    if unused:
        sys.exit(f"no parameters for the tensors {', '.join(sorted(unused))}")
    model.load_state_dict(state)
    model.tie_weights()


def write(path, tokens, values):
    head = struct.pack("<II", len(tokens), values.shape[1]) + struct.pack(f"<{len(tokens)}i", *tokens)
    path.write_bytes(head + values.astype("<f4").tobytes())
    print(f"{path}: {values.shape[0]} rows, {values.shape[1]} values each")


def first(found):
    """Returns the rows of the first image."""
    while isinstance(found, (list, tuple)):
        found = found[0]
    return found.reshape(-1, found.shape[-1]).numpy()


def record_sizes(path):
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

    lines = []
    for i in range(600):
        random = [int(splitmix64(np.uint64(5 * i + j))) for j in range(5)]
        # Half of the sizes are small.
        most = 16384 if i % 2 else 300
        width, height = (1 + n % most for n in random[:2])
        patch = (14, 16)[random[2] % 2]
        least, limit = (4, 8, 64)[random[3] % 3], (64, 1280, 4096)[random[4] % 3]
        area = (2 * patch) ** 2
        try:
            target = smart_resize(height, width, 2 * patch, least * area, limit * area)[::-1]
        except ValueError:
            target = (0, 0)
        lines.append(" ".join(map(str, (width, height, 2 * patch, least, limit, *target))))
    path.write_text("\n".join(lines) + "\n")


def normalized(vision, image):
    image = torch.from_numpy(image).permute(2, 0, 1)[None].double() / 255
    mean, std = (torch.tensor(vision.key(key)).double().view(3, 1, 1) for key in ("image_mean", "image_std"))
    return (image - mean) / std


def computed(vision, text, name, image):
    """Returns the rows of an image, the tokens of a prompt around them, and the logits."""
    model, names, inputs = families()[name](vision, text)
    model = model.double().eval()
    load(model, names, vision.tensors | text.tensors, text_config(text)["head_dim"])
    image = normalized(vision, image)
    with torch.no_grad():
        given = inputs(image, torch.tensor([]))
        given = {key: value for key, value in given.items() if key not in ("token_type_ids", "mm_token_type_ids")}
        features = model.model.get_image_features(**given)
        parts = [features.pooler_output, *(getattr(features, "deepstack_features", None) or [])]
        rows = np.concatenate([first(part) for part in parts], axis=1)
        # Distinct tokens, without the placeholder.
        text_ids = [(i * 37 + 11) % PLACEHOLDER for i in range(BEFORE + AFTER)]
        tokens = text_ids[:BEFORE] + [PLACEHOLDER] * len(rows) + text_ids[BEFORE:]
        ids = torch.tensor([tokens])
        arguments = inputs(image, ids)
        logits = model(input_ids=ids, **arguments).logits[0].numpy()
        if "token_type_ids" in arguments:
            arguments["token_type_ids"] = torch.zeros_like(ids)
            causal = model(input_ids=ids, **arguments).logits[0].numpy()
            print(f"{name}: rows that see only earlier ones change the logits by an NMSE of {((causal - logits) ** 2).sum() / (logits**2).sum():.2e}")
    return rows, tokens, logits


def image_size(vision, name):
    return [vision.key("image_size")] * 2 if name in FIXED else SIZES.get(name, SIZE)


def record(directory, name):
    vision, text = (Seeded(directory / f"{name}{kind}.header.gguf") for kind in ("", "-text"))
    rows, tokens, logits = computed(vision, text, name, pixels(*image_size(vision, name)))
    write(directory / f"{name}.rows", list(range(len(rows))), rows)
    write(directory / f"{name}.logits", tokens, logits)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    torch.manual_seed(0)
    recorded = [name for name in families() if (Path(sys.argv[1]) / f"{name}.header.gguf").exists()]
    for family in sys.argv[2:] or [*recorded, "sizes", "targets", "tiles"]:
        if family == "sizes":
            record_sizes(Path(sys.argv[1]) / "sizes.txt")
        elif family == "tiles":
            import record_media_families
            import record_media_learned
            import record_media_newer
            import record_media_ocr
            import record_media_windows

            record_media_windows.record_step3_tiles(Path(sys.argv[1]))
            record_media_newer.record_granite_tiles(Path(sys.argv[1]))
            record_media_learned.record_two_images(Path(sys.argv[1]))
            record_media_ocr.record_deepseek_tiles(Path(sys.argv[1]))
            record_media_families.record_tiles(Path(sys.argv[1]))
            record_media_families.record_llava_tiles(Path(sys.argv[1]))
            record_media_families.record_listed(Path(sys.argv[1]) / "listed.txt", lambda i: int(splitmix64(np.uint64(i))))
        elif family == "targets":
            import record_media_families

            targets = Path(sys.argv[1]) / "targets.txt"
            record_media_families.record_targets(targets, lambda i: int(splitmix64(np.uint64(i))))
        else:
            record(Path(sys.argv[1]), family)
