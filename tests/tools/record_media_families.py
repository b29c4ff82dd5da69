"""Published implementations of more encoders for `record_media.py`."""

import re

import numpy as np
import torch
import transformers

from record_media import GEMMA, LLAMA, PLACEHOLDER, QWEN, QWEN3, QWEN25_VISION, TEXT, VISION
from record_media import qwen_inputs, qwen_text, qwen_vision, text_config, vision_config, within

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
    # The epsilon of the encoder is hard-coded in the published classes.
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
    # The published class appends the class token after the mean; the graph does not use this token.
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
    # Only LLaVA 1.6 has this row.
    vision.tensors.pop("model.image_newline", None)
    model, names = llava(transformers.LlavaConfig, vision, text)
    return model, names, lambda image, ids: {"pixel_values": image}


def llava(kind, vision, text, **options):
    settings = text_config(text) | {"model_type": "llama", "rope_parameters": ROPE}
    eyes = vision_config(vision) | {"model_type": "clip_vision_model", "hidden_act": "quick_gelu"}
    # The features are the input of the last layer, which files omit.
    eyes["num_hidden_layers"] += 1
    config = kind(text_config=settings, vision_config=eyes, image_token_index=PLACEHOLDER, tie_word_embeddings=True, **options)
    model = model_of(config)
    names = within("model.vision_tower", CLIP_VISION) | within("model.language_model", TEXT | LLAMA)
    names |= {"model.multi_modal_projector.linear_1": "mm.0", "model.multi_modal_projector.linear_2": "mm.2"}
    last = vision.key("block_count")
    names = {name: tensor for name, tensor in names.items() if tensor}
    names |= {name.replace("{}", str(last)): "" for name in names if ".layers.{}" in name and "vision" in name}
    return model, names


def rows_of_patches(image, patch):
    """Returns the patches of an image in reading order, with the colors of a pixel adjacent."""
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


def lfm2_text(text):
    heads = text.key("attention.head_count_kv")
    heads = heads if isinstance(heads, list) else [heads] * text.key("block_count")
    return text_config(text) | {
        "model_type": "lfm2",
        "rope_parameters": ROPE,
        "layer_types": ["full_attention" if n else "conv" for n in heads],
        "num_key_value_heads": max(heads),
        "conv_L_cache": text.key("shortconv.l_cache"),
        "conv_bias": False,
        "norm_eps": text.key("attention.layer_norm_rms_epsilon"),
        "block_auto_adjust_ff_dim": False,
    }


def lfm2(vision, text):
    settings = lfm2_text(text)
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


GEMMA4_VISION = {
    "patch_embedder.input_proj": "v.patch_embd|pixels",
    "patch_embedder.position_embedding_table": "v.position_embd.weight",
    "std_bias": "v.std_bias",
    "std_scale": "v.std_scale",
    "encoder.layers.{}.input_layernorm": "v.blk.{}.ln1",
    "encoder.layers.{}.post_attention_layernorm": "v.blk.{}.attn_post_norm",
    "encoder.layers.{}.pre_feedforward_layernorm": "v.blk.{}.ln2",
    "encoder.layers.{}.post_feedforward_layernorm": "v.blk.{}.ffn_post_norm",
    "encoder.layers.{}.self_attn.q_norm": "v.blk.{}.attn_q_norm",
    "encoder.layers.{}.self_attn.k_norm": "v.blk.{}.attn_k_norm",
}

for module, tensor in {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_out",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}.items():
    GEMMA4_VISION[f"encoder.layers.{{}}.{module}.linear"] = f"v.blk.{{}}.{tensor}"
    for bound in ("input_min", "input_max", "output_min", "output_max"):
        GEMMA4_VISION[f"encoder.layers.{{}}.{module}.{bound}"] = f"v.blk.{{}}.{tensor}.{bound}"

GEMMA4 = {name: tensor.partition("|")[0] for name, tensor in GEMMA.items()} | {"layers.{}.layer_scalar": "blk.{}.layer_output_scale.weight"}


def gemma4_text(text):
    windows = text.key("attention.sliding_window_pattern")
    types = ["sliding_attention" if windowed else "full_attention" for windowed in windows]
    return text_config(text) | {
        "head_dim": text.key("attention.key_length_swa"),
        "global_head_dim": text.key("attention.key_length"),
        "layer_types": types,
        "num_kv_shared_layers": text.key("attention.shared_kv_layers") or 0,
        "hidden_size_per_layer_input": 0,
        "sliding_window": text.key("attention.sliding_window"),
        "rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE},
        "final_logit_softcapping": text.key("final_logit_softcapping") or 30.0,
        "use_bidirectional_attention": "vision",
        "pad_token_id": 0,
        # Without per-layer embeddings, the layers that share keys fail.
        "output_hidden_states": True,
    }


def divide_frequencies(rotary, text):
    """Files contain the frequency divisors of full-attention layers."""
    size = text.key("attention.key_length")
    frequencies = 10000.0 ** (-np.arange(0, size, 2) / size)
    rotary.full_attention_inv_freq = torch.tensor(frequencies / text.tensors.pop("rope_freqs.weight"))


def placed_patches(patch):
    """Returns a function from a normalized image to the model arguments: patches, each with its column and row."""

    def inputs(image, ids):
        rows, columns = image.shape[2] // patch, image.shape[3] // patch
        places = [[column, row] for row in range(rows) for column in range(columns)]
        return {
            "pixel_values": rows_of_patches(image, patch),
            "image_position_ids": torch.tensor([places]),
            "mm_token_type_ids": (ids == PLACEHOLDER).long(),
        }

    return inputs


def gemma4v(vision, text):
    eyes = {
        "hidden_size": vision.key("embedding_length"),
        "intermediate_size": vision.key("feed_forward_length"),
        "num_hidden_layers": vision.key("block_count"),
        "num_attention_heads": vision.key("attention.head_count"),
        "num_key_value_heads": vision.key("attention.head_count"),
        "head_dim": vision.key("embedding_length") // vision.key("attention.head_count"),
        "rms_norm_eps": vision.key("attention.layer_norm_epsilon"),
        "patch_size": vision.key("patch_size"),
        "pooling_kernel_size": vision.key("projector.scale_factor"),
        "position_embedding_size": vision.tensors["v.position_embd.weight"].shape[1],
        "use_clipped_linears": True,
        "standardize": "v.std_bias" in vision.tensors,
    }
    config = transformers.Gemma4Config(
        text_config=gemma4_text(text), vision_config=eyes, audio_config=None, image_token_id=PLACEHOLDER, tie_word_embeddings=True
    )
    model = model_of(config)
    divide_frequencies(model.model.language_model.rotary_emb, text)
    names = within("model.vision_tower", GEMMA4_VISION) | within("model.language_model", TEXT | GEMMA4)
    names["model.embed_vision.embedding_projection"] = "mm.input_projection"
    return model, names, placed_patches(vision.key("patch_size"))


def pixtral_vision(vision):
    return vision_config(vision) | {"model_type": "pixtral", "hidden_act": "silu", "rope_parameters": {"rope_type": "axial", "rope_theta": 10000.0}}


def set_epsilon(modules, epsilon):
    """The epsilon may be hard-coded in published classes."""
    for module in modules:
        for name in ("eps", "variance_epsilon"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, epsilon)


def lightonocr(vision, text):
    settings = text_config(text) | {"model_type": "qwen3", "rope_parameters": ROPE}
    config = transformers.LightOnOcrConfig(
        text_config=settings,
        vision_config=pixtral_vision(vision),
        image_token_id=PLACEHOLDER,
        spatial_merge_size=vision.key("spatial_merge_size"),
        tie_word_embeddings=True,
    )
    model = model_of(config)
    set_epsilon([*model.model.vision_encoder.modules(), model.model.vision_projection.norm], vision.key("attention.layer_norm_epsilon"))
    names = within("model.vision_encoder", PIXTRAL_VISION) | within("model.language_model", TEXT | QWEN3)
    names |= within(
        "model.vision_projection",
        {"norm": "mm.input_norm", "patch_merger.merging_layer": "mm.patch_merger", "linear_1": "mm.1", "linear_2": "mm.2"},
    )
    return model, names, lambda image, ids: {"pixel_values": image, "image_sizes": torch.tensor([image.shape[-2:]])}


def planes_of_patches(image, patch):
    """Returns the patches of an image in reading order."""
    _, channels, height, width = image.shape
    split = image.reshape(channels, height // patch, patch, width // patch, patch)
    return split.permute(1, 3, 0, 2, 4).reshape(-1, channels, patch, patch)


def gridded_patches(patch):
    """Returns a function from a normalized image to the model arguments: patches in reading order, and the grid."""

    def inputs(image, ids):
        return {
            "pixel_values": planes_of_patches(image, patch),
            "image_grid_thw": torch.tensor([[1, image.shape[2] // patch, image.shape[3] // patch]]),
            "mm_token_type_ids": (ids == PLACEHOLDER).long(),
        }

    return inputs


PADDLE_PROJECTOR = {"pre_norm": "mm.input_norm", "linear_1": "mm.1", "linear_2": "mm.2"}


def paddleocr(vision, text):
    patch = vision.key("patch_size")
    side = round(vision.tensors["v.position_embd.weight"].shape[0] ** 0.5)
    eyes = vision_config(vision) | {"image_size": side * patch, "spatial_merge_size": vision.key("projector.scale_factor")}
    config = transformers.PaddleOCRVLConfig(
        text_config=qwen_text(text), vision_config=eyes, image_token_id=PLACEHOLDER, video_token_id=126, tie_word_embeddings=True
    )
    model = model_of(config)
    names = within("model.visual.vision_model", VISION) | within("model.language_model", TEXT | QWEN)
    return model, names | within("model.projector", PADDLE_PROJECTOR), gridded_patches(patch)


GLM4V_VISION = QWEN25_VISION | {
    "post_conv_layernorm": "v.norm_embd",
    "embeddings.position_embedding": "v.position_embd",
    "post_layernorm": "v.post_ln",
    "downsample": "mm.patch_merger",
    "merger.proj": "mm.model.fc",
    "merger.post_projection_norm": "mm.post_norm",
    "merger.gate_proj": "mm.gate",
    "merger.up_proj": "mm.up",
    "merger.down_proj": "mm.down",
}

GLM4 = {
    "layers.{}.post_self_attn_layernorm": "blk.{}.post_attention_norm",
    "layers.{}.post_attention_layernorm": "blk.{}.ffn_norm",
    "layers.{}.post_mlp_layernorm": "blk.{}.post_ffw_norm",
    "layers.{}.mlp.gate_up_proj": "blk.{}.ffn_up",
}


def glm4v(vision, text):
    settings, n_rot = qwen_text(text), text.key("rope.dimension_count")
    settings["rope_parameters"]["partial_rotary_factor"] = n_rot / settings["head_dim"]
    eyes = qwen_vision(vision) | {
        "hidden_size": vision.key("embedding_length"),
        "image_size": vision.key("image_size"),
        "rms_norm_eps": vision.key("attention.layer_norm_epsilon"),
        "out_hidden_size": vision.key("projection_dim"),
        "intermediate_size": vision.tensors["mm.up.weight"].shape[0],
    }
    special = {"image_token_id": PLACEHOLDER, "video_token_id": 126, "image_start_token_id": 125, "image_end_token_id": 124}
    config = transformers.Glm4vConfig(text_config=settings, vision_config=eyes, tie_word_embeddings=True, **special)
    model = model_of(config)
    names = within("model.visual", GLM4V_VISION) | within("model.language_model", TEXT | GLM4)
    # Files store the halves of pairs that rotate along an axis separately.
    for part in "qk":
        names[f"model.language_model.layers.{{}}.self_attn.{part}_proj"] = f"blk.{{}}.attn_{part}|neighbors:{n_rot}"
    return model, names, qwen_inputs(vision)


def gemma4uv(vision, text):
    eyes = {
        "mm_embed_dim": vision.key("embedding_length"),
        "output_proj_dims": vision.key("embedding_length"),
        "mm_posemb_size": vision.tensors["v.position_embd.weight"].shape[1],
        "rms_norm_eps": vision.key("attention.layer_norm_epsilon"),
        "patch_size": vision.key("patch_size"),
        "pooling_kernel_size": vision.key("projector.scale_factor"),
    }
    settings = gemma4_text(text)
    settings.pop("hidden_size_per_layer_input")
    config = transformers.Gemma4UnifiedConfig(
        text_config=settings, vision_config=eyes, audio_config=None, image_token_id=PLACEHOLDER, tie_word_embeddings=True
    )
    model = model_of(config)
    # Calling the published class lets rows attend to each other also in full-attention layers. `generate` does not.
    module = transformers.models.gemma4_unified.modeling_gemma4_unified
    module.create_masks_for_generate = module.create_masks_for_vision_model
    divide_frequencies(model.model.language_model.rotary_emb, text)
    names = within("model.language_model", TEXT | GEMMA4)
    names |= within(
        "model.embed_vision",
        {
            "patch_ln1": "v.patch_norm.1|pixels",
            "patch_dense": "v.patch_embd|pixels",
            "patch_ln2": "v.patch_norm.2",
            "pos_embedding": "v.position_embd.weight|swap",
            "pos_norm": "v.patch_norm.3",
            "multimodal_embedder.embedding_projection": "mm.input_projection",
        },
    )
    patch = vision.key("patch_size") * vision.key("projector.scale_factor")
    return model, names, placed_patches(patch)


FAMILIES = {"pixtral": pixtral, "internvl": internvl, "mlp": mlp, "lfm2": lfm2, "gemma4v": gemma4v} | {
    "lightonocr": lightonocr,
    "paddleocr": paddleocr,
    "glm4v": glm4v,
    "gemma4uv": gemma4uv,
}


def functions_of(module, *names):
    """Returns functions of a published module, without importing its image libraries."""
    import ast
    import importlib.util
    import math
    from collections import defaultdict
    from functools import lru_cache

    path = f"{importlib.util.find_spec('transformers').submodule_search_locations[0]}/models/{module}.py"
    tree = ast.parse(open(path).read())
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in names]
    for node in found:
        node.decorator_list, node.returns = [], None
        for argument in node.args.args:
            argument.annotation = None
    scope = {"math": math, "lru_cache": lru_cache, "torch": torch, "defaultdict": defaultdict}
    exec(compile(ast.Module(found, []), path, "exec"), scope)
    return [scope[name] for name in names]


def tiles_of_idefics3():
    """Returns a function that maps image size, tile size, and longest side to columns and rows."""
    names = ("_resize_output_size_rescale_to_max_len", "_resize_output_size_scale_below_upper_bound", "get_resize_output_image_size", "resize_for_vision_encoder")
    *_, longest_side, whole_tiles = functions_of("idefics3/image_processing_idefics3", *names)

    class Image:
        def __init__(self, height, width):
            self.shape = (height, width)

        def size(self):
            return self.shape

        def resize(self, image, size, resample):
            return size["width"], size["height"]

    longest_side.__globals__["MAX_IMAGE_SIZE"] = 4096
    longest_side.__globals__["SizeDict"] = dict

    def tiles(width, height, side, longest):
        image = Image(*longest_side(Image(height, width), longest))
        return [pixels // side for pixels in whole_tiles(image, image, side)]

    return tiles


def canvas_of_llama4():
    """Returns a function that maps image size, tile size, and number of tiles to columns, rows, and the size of the
    image without borders."""
    names = ("get_factors", "get_max_res_without_distortion", "find_supported_resolutions", "get_best_fit")
    _, without_distortion, resolutions, best_fit = functions_of("llama4/image_processing_llama4", *names)

    class Square:
        def __init__(self, side):
            self.height = self.width = side

    def canvas(width, height, side, most):
        grids = torch.tensor(resolutions(most, Square(side)))
        grid = [int(n) for n in best_fit((height, width), grids)]
        limits = [min(max(n, side), whole) for n, whole in zip((height, width), grid)]
        scaled = [max(n, 1) for n in without_distortion((height, width), limits)]
        return *(n // side for n in grid[::-1]), *scaled[::-1]

    return canvas


def slices_of_minicpm():
    """Returns a function of an image size. It returns the size of the whole image, and the columns, rows, and size of
    its tiles, if any."""
    names = ("ensure_divide", "find_best_resize", "get_refine_size", "get_sliced_grid")
    _, *methods = functions_of("minicpmv4_6/image_processing_minicpmv4_6", *names)
    published = type("Published", (), dict(zip(names[1:], methods)))()

    def slices(width, height, side, patch, mode, most):
        grid = published.get_sliced_grid((height, width), most, side)
        whole = published.find_best_resize((height, width), side, patch, mode, allow_upscale=grid is None)[::-1]
        if grid is None:
            return whole, []
        return whole, [*grid[::-1], *published.get_refine_size((height, width), grid, side, patch, mode, allow_upscale=True)[::-1]]

    return slices


def record_tiles(directory):
    """Writes `idefics3-tiles.rows` and `idefics3-tiles.logits`: a column of two tiles and the whole image, with the texts before each."""
    import record_media
    from record_media import AFTER, BEFORE

    vision, text = (record_media.Seeded(directory / f"idefics3{kind}.header.gguf") for kind in ("", "-text"))
    model, names, _ = record_media.idefics3(vision, text)
    model = model.double().eval()
    record_media.load(model, names, vision.tensors | text.tensors, text_config(text)["head_dim"])
    side = vision.key("image_size")
    both = record_media.normalized(vision, record_media.pixels(side, 2 * side))
    whole = record_media.normalized(vision, record_media.pixels(side, side))
    images = torch.cat([both[:, :, :side], both[:, :, side:], whole])[None]
    (prompt,) = functions_of("smolvlm/processing_smolvlm", "_prompt_split_image")
    n_rows = (side // vision.key("patch_size") // vision.key("projector.scale_factor")) ** 2
    words = prompt(n_rows, 2, 1, "<fake_token_around_image>", "<image>", "<global-img>")
    tokens = ["<fake_token_around_image>", "<row_1_col_1>", "<row_2_col_1>", "<global-img>", "\n\n", "\n"]
    ids = dict(zip(tokens, range(1, 100))) | {"<image>": PLACEHOLDER}
    found = re.findall("|".join(ids), words)
    assert "".join(found) == words
    text_ids = [(i * 37 + 11) % PLACEHOLDER for i in range(BEFORE + AFTER)]
    tokens = text_ids[:BEFORE] + [ids[word] for word in found] + text_ids[BEFORE:]
    with torch.no_grad():
        rows = model.model.get_image_features(pixel_values=images).pooler_output
        rows = torch.cat(list(rows)).reshape(-1, text.key("embedding_length")).numpy()
        logits = model(input_ids=torch.tensor([tokens]), pixel_values=images).logits[0].numpy()
    record_media.write(directory / "idefics3-tiles.rows", list(range(len(rows))), rows)
    record_media.write(directory / "idefics3-tiles.logits", tokens, logits)


# Heights and widths of the LLaVA 1.6 grids in the tests.
GRIDS = [[48, 96], [96, 48], [96, 96]]


def record_llava_tiles(directory):
    """Writes `llava-tiles.rows` and `llava-tiles.logits`: two rows of two tiles after the whole image. Borders are
    black."""
    import record_media
    from record_media import AFTER, BEFORE

    vision, text = (record_media.Seeded(directory / f"mlp{kind}.header.gguf") for kind in ("", "-text"))
    model, names = llava(transformers.LlavaNextConfig, vision, text, image_grid_pinpoints=GRIDS)
    names["model.image_newline"] = "model.image_newline"
    model = model.double().eval()
    record_media.load(model, names, vision.tensors | text.tensors, text_config(text)["head_dim"])
    side, image = vision.key("image_size"), (50, 90)
    height, width = (96, 96)
    scaled = transformers.image_processing_utils.get_patch_output_size(np.zeros((1, *image)), (height, width), "channels_first")
    top, left = (height - scaled[0]) // 2, (width - scaled[1]) // 2
    canvas = np.zeros((height, width, 3), dtype=np.uint8)
    canvas[top : top + scaled[0], left : left + scaled[1]] = record_media.pixels(scaled[1], scaled[0])
    tiles = [canvas[y : y + side, x : x + side] for y in range(0, height, side) for x in range(0, width, side)]
    images = torch.stack([record_media.normalized(vision, tile)[0] for tile in [record_media.pixels(side, side), *tiles]])[None]
    given = {"pixel_values": images, "image_sizes": torch.tensor([image])}
    text_ids = [(i * 37 + 11) % PLACEHOLDER for i in range(BEFORE + AFTER)]
    with torch.no_grad():
        rows = model.model.get_image_features(**given).pooler_output[0].numpy()
        tokens = text_ids[:BEFORE] + [PLACEHOLDER] * len(rows) + text_ids[BEFORE:]
        logits = model(input_ids=torch.tensor([tokens]), **given).logits[0].numpy()
    record_media.write(directory / "llava-tiles.rows", list(range(len(rows))), rows)
    record_media.write(directory / "llava-tiles.logits", tokens, logits)


def record_listed(path, random):
    """Writes sizes of 1,000 images: columns and rows of the grid, the resized image, and the number of rows with LLaVA 1.6."""
    from transformers.image_processing_utils import get_patch_output_size, select_best_resolution
    from transformers.models.llava_next.modeling_llava_next import unpad_image

    side, n = 48, 6
    lines = []
    for i in range(1000):
        most = (60, 200, 8192)[i % 3]
        width, height = (1 + random(2 * i + j) % most for j in range(2))
        best = select_best_resolution((height, width), GRIDS)
        scaled = get_patch_output_size(np.zeros((1, height, width), dtype=bool), best, "channels_first")
        kept = unpad_image(torch.zeros(1, best[0] // side * n, best[1] // side * n), (height, width))
        n_rows = n * n + kept.shape[1] * (kept.shape[2] + 1)
        lines.append([width, height, best[1] // side, best[0] // side, scaled[1], scaled[0], n_rows])
    path.write_text("\n".join(" ".join(map(str, line)) for line in lines) + "\n")


def record_targets(path, random):
    """Writes the sizes that images are resized to or split into: a rule with its parameters, the image, and the
    result."""
    (within_budget,) = functions_of("gemma4/image_processing_gemma4", "get_aspect_ratio_preserving_size")
    count, resized = functions_of("pixtral/image_processing_pixtral", "_num_image_tokens", "get_resize_output_image_size")
    resized.__globals__["get_image_size"] = lambda image, data_format=None: image
    (closest,) = functions_of("lfm2_vl/image_processing_lfm2_vl", "find_closest_aspect_ratio")
    tiles = tiles_of_idefics3()
    (bordered,) = functions_of("kimi_k25/image_processing_kimi_k25", "navit_resize")
    canvas, slices = canvas_of_llama4(), slices_of_minicpm()
    (fitting,) = functions_of("siglip2/image_processing_pil_siglip2", "get_image_size_for_max_num_patches")
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
        side, longest = ((364, 1456), (512, 2048))[i % 2]
        lines.append(["tiles", side, longest, width, height, *tiles(width, height, side, longest)])
        area = (96, 1024, 4096)[i % 3]
        scaled, whole = bordered(height, width, 14, 2, 4 * area, 512)
        lines.append(["bordered", 14, area, width, height, *scaled[::-1], *whole[::-1]])
        most = (4, 16)[i % 2]
        lines.append(["canvas", 336, most, width, height, *canvas(width, height, 336, most)])
        mode, unit, most = (("16x", 56, 9), ("4x", 28, 4))[i % 2]
        whole, tiles_of_image = slices(width, height, 448, 14, mode, most)
        lines.append(["area", 448, unit, width, height, *whole])
        lines.append(["slices", 448, unit, most, width, height, *tiles_of_image])
        least, limit = ((256, 3600), (32, 320))[i % 2]
        # The number of patches follows `Siglip2ImageProcessorNoUpscale` in the published code of Phi-4.
        n_patches = min(max((width // 16) * (height // 16), 1, least), limit)
        lines.append(["fitting", 16, least, limit, width, height, *fitting(height, width, 16, n_patches)[::-1]])
        least, limit, side = ((1, 12, 448), (2, 10, 512))[i % 2]
        grids = {(w, h) for w in range(1, limit + 1) for h in range(1, limit + 1) if least <= w * h <= limit}
        grids = sorted(sorted(grids), key=lambda grid: grid[0] * grid[1])
        lines.append(["ratio", side, least, limit, width, height, *closest(width / height, grids, width, height, side)])
    import record_media_restated
    import record_media_windows

    lines += record_media_windows.targets(random) + record_media_restated.targets(random)
    path.write_text("\n".join(" ".join(map(str, line)) for line in lines) + "\n")
