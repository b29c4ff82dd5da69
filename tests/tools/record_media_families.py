"""Published implementations of more encoders for `record_media.py`."""

import numpy as np
import torch
import transformers

from record_media import LLAMA, PLACEHOLDER, QWEN, TEXT, VISION, text_config, vision_config, within

ROPE = {"rope_type": "default", "rope_theta": 10000.0}


def model_of(config):
    return transformers.AutoModelForImageTextToText.from_config(config, attn_implementation="eager")


PIXTRAL_VISION = {
    "patch_conv": "v.patch_embd",
    "ln_pre": "v.pre_ln",
    "transformer.layers.{}.attention_norm": "v.blk.{}.ln1",
    "transformer.layers.{}.ffn_norm": "v.blk.{}.ln2",
    "transformer.layers.{}.attention.q_proj": "v.blk.{}.attn_q|halves",
    "transformer.layers.{}.attention.k_proj": "v.blk.{}.attn_k|halves",
    "transformer.layers.{}.attention.v_proj": "v.blk.{}.attn_v",
    "transformer.layers.{}.attention.o_proj": "v.blk.{}.attn_out",
    "transformer.layers.{}.feed_forward.gate_proj": "v.blk.{}.ffn_gate",
    "transformer.layers.{}.feed_forward.up_proj": "v.blk.{}.ffn_up",
    "transformer.layers.{}.feed_forward.down_proj": "v.blk.{}.ffn_down",
}


def pixtral(vision, text):
    settings = text_config(text) | {"model_type": "mistral", "rope_parameters": ROPE, "sliding_window": None}
    eyes = vision_config(vision) | {"model_type": "pixtral", "hidden_act": "silu", "rope_parameters": {"rope_type": "axial", "rope_theta": 10000.0}}
    config = transformers.Mistral3Config(
        text_config=settings,
        vision_config=eyes,
        image_token_index=PLACEHOLDER,
        spatial_merge_size=vision.key("spatial_merge_size"),
        vision_feature_layer=-1,
        multimodal_projector_bias=False,
        tie_word_embeddings=True,
    )
    model = model_of(config)
    # The published classes have the epsilon of the encoder in their code.
    for module in [*model.model.vision_tower.modules(), model.model.multi_modal_projector.norm]:
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = vision.key("attention.layer_norm_epsilon")
    names = within("model.vision_tower", PIXTRAL_VISION) | within("model.language_model", TEXT | LLAMA)
    names |= {
        "model.multi_modal_projector.norm": "mm.input_norm",
        "model.multi_modal_projector.patch_merger.merging_layer": "mm.patch_merger",
        "model.multi_modal_projector.linear_1": "mm.1",
        "model.multi_modal_projector.linear_2": "mm.2",
    }
    return model, names, lambda image, ids: {"pixel_values": image, "image_sizes": torch.tensor([image.shape[-2:]])}


INTERNVL_VISION = {
    "embeddings.cls_token": "v.class_embd",
    "embeddings.patch_embeddings.projection": "v.patch_embd",
    "embeddings.position_embeddings": "v.position_embd.weight",
    "encoder.layer.{}.layernorm_before": "v.blk.{}.ln1",
    "encoder.layer.{}.layernorm_after": "v.blk.{}.ln2",
    "encoder.layer.{}.attention.q_proj": "v.blk.{}.attn_q",
    "encoder.layer.{}.attention.k_proj": "v.blk.{}.attn_k",
    "encoder.layer.{}.attention.v_proj": "v.blk.{}.attn_v",
    "encoder.layer.{}.attention.projection_layer": "v.blk.{}.attn_out",
    "encoder.layer.{}.mlp.fc1": "v.blk.{}.ffn_up",
    "encoder.layer.{}.mlp.fc2": "v.blk.{}.ffn_down",
    "encoder.layer.{}.lambda_1": "v.blk.{}.ls1.weight",
    "encoder.layer.{}.lambda_2": "v.blk.{}.ls2.weight",
}


def internvl(vision, text):
    settings = text_config(text) | {"model_type": "qwen2", "rope_parameters": ROPE}
    eyes = vision_config(vision) | {"attention_bias": True, "use_qk_norm": False, "norm_type": "layer_norm"}
    eyes |= {key: [eyes[key]] * 2 for key in ("image_size", "patch_size")}
    config = transformers.InternVLConfig(
        text_config=settings,
        vision_config=eyes,
        image_token_id=PLACEHOLDER,
        downsample_ratio=1 / vision.key("projector.scale_factor"),
        vision_feature_layer=-1,
        tie_word_embeddings=True,
    )
    model = model_of(config)
    # The published class has the class token after the mean, which the graph does not use.
    names = within("model.vision_tower", INTERNVL_VISION) | within("model.language_model", TEXT | QWEN)
    names |= {
        "model.multi_modal_projector.layer_norm": "mm.model.mlp.0",
        "model.multi_modal_projector.linear_1": "mm.model.mlp.1",
        "model.multi_modal_projector.linear_2": "mm.model.mlp.3",
    }
    return model, names, lambda image, ids: {"pixel_values": image}


CLIP_VISION = VISION | {
    "embeddings.class_embedding": "v.class_embd",
    "pre_layrnorm": "v.pre_ln",
    "post_layernorm": None,
}


def mlp(vision, text):
    settings = text_config(text) | {"model_type": "llama", "rope_parameters": ROPE}
    eyes = vision_config(vision) | {"model_type": "clip_vision_model", "hidden_act": "quick_gelu"}
    # The features are those before the last layer, which files lack.
    eyes["num_hidden_layers"] += 1
    config = transformers.LlavaConfig(text_config=settings, vision_config=eyes, image_token_index=PLACEHOLDER, tie_word_embeddings=True)
    model = model_of(config)
    names = within("model.vision_tower", CLIP_VISION) | within("model.language_model", TEXT | LLAMA)
    names |= {"model.multi_modal_projector.linear_1": "mm.0", "model.multi_modal_projector.linear_2": "mm.2"}
    last = vision.key("block_count")
    names = {name: tensor for name, tensor in names.items() if tensor}
    names |= {name.replace("{}", str(last)): "" for name in names if ".layers.{}" in name and "vision" in name}
    return model, names, lambda image, ids: {"pixel_values": image}


def rows_of_patches(image, patch):
    """The patches of an image in reading order, with the colors of a pixel next to each other."""
    _, channels, height, width = image.shape
    split = image.reshape(channels, height // patch, patch, width // patch, patch)
    return split.permute(1, 3, 2, 4, 0).reshape(1, -1, patch * patch * channels)


LFM2_VISION = VISION | {"embeddings.patch_embedding": "v.patch_embd|pixels"}

LFM2 = {
    "layers.{}.operator_norm": "blk.{}.attn_norm",
    "layers.{}.ffn_norm": "blk.{}.ffn_norm",
    "layers.{}.conv.conv": "blk.{}.shortconv.conv",
    "layers.{}.conv.in_proj": "blk.{}.shortconv.in_proj",
    "layers.{}.conv.out_proj": "blk.{}.shortconv.out_proj",
    "layers.{}.self_attn.out_proj": "blk.{}.attn_output",
    "layers.{}.self_attn.q_layernorm": "blk.{}.attn_q_norm",
    "layers.{}.self_attn.k_layernorm": "blk.{}.attn_k_norm",
    "layers.{}.feed_forward.w1": "blk.{}.ffn_gate",
    "layers.{}.feed_forward.w3": "blk.{}.ffn_up",
    "layers.{}.feed_forward.w2": "blk.{}.ffn_down",
    "embedding_norm": "token_embd_norm",
}


def lfm2(vision, text):
    heads = text.key("attention.head_count_kv")
    heads = heads if isinstance(heads, list) else [heads] * text.key("block_count")
    settings = text_config(text) | {
        "model_type": "lfm2",
        "rope_parameters": ROPE,
        "layer_types": ["full_attention" if n else "conv" for n in heads],
        "num_key_value_heads": max(heads),
        "conv_L_cache": text.key("shortconv.l_cache"),
        "conv_bias": False,
        "norm_eps": text.key("attention.layer_norm_rms_epsilon"),
        "block_auto_adjust_ff_dim": False,
    }
    eyes = vision_config(vision) | {"num_patches": vision.tensors["v.position_embd.weight"].shape[0], "vision_use_head": False}
    config = transformers.Lfm2VlConfig(
        text_config=settings,
        vision_config=eyes,
        image_token_id=PLACEHOLDER,
        downsample_factor=vision.key("projector.scale_factor"),
        projector_hidden_size=vision.tensors["mm.1.weight"].shape[0],
        projector_use_layernorm="mm.input_norm.weight" in vision.tensors,
        tie_word_embeddings=True,
    )
    model = model_of(config)
    names = within("model.vision_tower", LFM2_VISION) | within("model.language_model", TEXT | LFM2)
    names |= {
        "model.multi_modal_projector.layer_norm": "mm.input_norm",
        "model.multi_modal_projector.linear_1": "mm.1",
        "model.multi_modal_projector.linear_2": "mm.2",
    }
    patch = vision.key("patch_size")

    def inputs(image, ids):
        patches = rows_of_patches(image, patch)
        return {
            "pixel_values": patches,
            "spatial_shapes": torch.tensor([[image.shape[2] // patch, image.shape[3] // patch]]),
            "pixel_attention_mask": torch.ones(patches.shape[:2], dtype=torch.long),
        }

    return model, names, inputs


FAMILIES = {"pixtral": pixtral, "internvl": internvl, "mlp": mlp, "lfm2": lfm2}


def functions_of(module, *names):
    """Functions of a published module, without its imports of image libraries."""
    import ast
    import importlib.util
    import math
    from functools import lru_cache

    path = importlib.util.find_spec("transformers").submodule_search_locations[0] + f"/models/{module}.py"
    tree = ast.parse(open(path).read())
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in names]
    for node in found:
        node.decorator_list, node.returns = [], None
        for argument in node.args.args:
            argument.annotation = None
    scope = {"math": math, "lru_cache": lru_cache}
    exec(compile(ast.Module(found, []), path, "exec"), scope)
    return [scope[name] for name in names]


def record_targets(path, random):
    """Writes sizes that images are resized to or split into: a rule with its numbers, the image, and the result."""
    (within_budget,) = functions_of("gemma4/image_processing_gemma4", "get_aspect_ratio_preserving_size")
    count, resized = functions_of("pixtral/image_processing_pixtral", "_num_image_tokens", "get_resize_output_image_size")
    resized.__globals__["get_image_size"] = lambda image, data_format=None: image
    (closest,) = functions_of("lfm2_vl/image_processing_lfm2_vl", "find_closest_aspect_ratio")
    lines = []
    for i in range(200):
        most = 16384 if i % 2 else 900
        width, height = (1 + random(2 * i + j) % most for j in range(2))
        if max(width, height) > 200 * min(width, height):
            continue
        budget = (70, 280, 1120)[i % 3]
        target = within_budget(height, width, 16, budget * 9, 3)[::-1]
        lines.append(["within", 48, budget, width, height, *target])
        target = resized((height, width), (1540, 1540), (28, 28), None)[::-1]
        if min(target) > 0:
            lines.append(["longest", 1540, 28, width, height, *target])
        least, limit, side = ((1, 12, 448), (2, 10, 512))[i % 2]
        grids = {(w, h) for w in range(1, limit + 1) for h in range(1, limit + 1) if least <= w * h <= limit}
        grids = sorted(sorted(grids), key=lambda grid: grid[0] * grid[1])
        lines.append(["ratio", side, least, limit, width, height, *closest(width / height, grids, width, height, side)])
    path.write_text("\n".join(" ".join(map(str, line)) for line in lines) + "\n")
