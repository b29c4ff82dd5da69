"""Published implementations of newer encoders for `record_media.py`."""

import numpy as np
import torch
import transformers

from record_media import LLAMA, PLACEHOLDER, QWEN, QWEN25_VISION, QWEN35, TEXT, VISION
from record_media import qwen35_text, qwen_inputs, qwen_vision, text_config, vision_config, within
from record_media_families import CLIP_VISION, ROPE, model_of, planes_of_patches, rows_of_patches, set_epsilon


KIMI_VISION = {
    "patch_embed.proj": "v.patch_embd",
    "patch_embed.pos_emb.position_embeddings": "v.position_embd.weight",
    "final_layernorm": "v.post_ln",
    "layers.{}.norm1": "v.blk.{}.ln1",
    "layers.{}.norm2": "v.blk.{}.ln2",
    "layers.{}.attn.v_proj": "v.blk.{}.attn_v",
    "layers.{}.attn.proj": "v.blk.{}.attn_out",
    "layers.{}.mlp.fc1": "v.blk.{}.ffn_up",
    "layers.{}.mlp.fc2": "v.blk.{}.ffn_down",
}

LATENT = {
    "layers.{}.self_attn.q_a_proj": "blk.{}.attn_q_a",
    "layers.{}.self_attn.q_a_layernorm": "blk.{}.attn_q_a_norm",
    "layers.{}.self_attn.q_b_proj": "blk.{}.attn_q_b",
    "layers.{}.self_attn.kv_a_proj_with_mqa": "blk.{}.attn_kv_a_mqa",
    "layers.{}.self_attn.kv_a_layernorm": "blk.{}.attn_kv_a_norm",
    "layers.{}.self_attn.kv_b_proj": "blk.{}.attn_kv_b",
    "layers.{}.post_attention_layernorm": "blk.{}.ffn_norm",
}


def latent_text(text):
    """DeepSeek V3 without experts. Files store separate key and value projections."""
    for il in range(text.key("block_count")):
        keys, values = (text.tensors.pop(f"blk.{il}.attn_{part}_b.weight") for part in "kv")
        both = np.concatenate([keys.swapaxes(1, 2), values], axis=1)
        text.tensors[f"blk.{il}.attn_kv_b.weight"] = both.reshape(-1, both.shape[2])
    n_rot = text.key("rope.dimension_count")
    settings = text_config(text) | {
        "model_type": "deepseek_v3",
        "num_key_value_heads": text.key("attention.head_count"),
        "q_lora_rank": text.key("attention.q_lora_rank"),
        "kv_lora_rank": text.key("attention.kv_lora_rank"),
        "qk_nope_head_dim": text.key("attention.key_length_mla") - n_rot,
        "qk_rope_head_dim": n_rot,
        "v_head_dim": text.key("attention.value_length_mla"),
        "first_k_dense_replace": text.key("block_count"),
        "rope_parameters": ROPE,
    }
    settings.pop("head_dim")
    return settings


def kimi(vision, text, side, parts):
    config = transformers.Kimi_K25Config(
        text_config=latent_text(text),
        vision_config={
            "hidden_size": vision.key("embedding_length"),
            "intermediate_size": vision.key("feed_forward_length"),
            "num_hidden_layers": vision.key("block_count"),
            "num_attention_heads": vision.key("attention.head_count"),
            "patch_size": vision.key("patch_size"),
            "pos_emb_height": side,
            "pos_emb_width": side,
            "rope_parameters": {"rope_type": "axial", "rope_theta": 10000.0},
        },
        projection_hidden_size=vision.key("embedding_length"),
        image_token_id=PLACEHOLDER,
        video_token_id=126,
        tie_word_embeddings=True,
    )
    model = model_of(config)
    # The epsilon of the encoder is hard-coded in the published class.
    set_epsilon(model.model.vision_tower.modules(), vision.key("attention.layer_norm_epsilon"))
    names = within("model.vision_tower", KIMI_VISION) | within("model.language_model", TEXT | LATENT)
    names |= within("model.mm_projector", {"pre_norm": "mm.input_norm", "in_proj": "mm.1", "out_proj": "mm.2"})
    for part in "qk":
        names[f"model.vision_tower.layers.{{}}.attn.{part}_proj"] = f"v.blk.{{}}.attn_{part}{parts}"
    patch = vision.key("patch_size")

    def inputs(image, ids):
        grid = torch.tensor([[1, image.shape[2] // patch, image.shape[3] // patch]])
        return {"pixel_values": planes_of_patches(image, patch), "image_grid_thw": grid}

    return model, names, inputs


def head_size(vision):
    return vision.key("embedding_length") // vision.key("attention.head_count")


def kimivl(vision, text):
    side = round(vision.tensors["v.position_embd.weight"].shape[0] ** 0.5)
    # The halves of a pair are adjacent, and pairs alternate between columns and rows.
    return kimi(vision, text, side, f"|halves:{head_size(vision)}")


def kimik25(vision, text):
    quarter = head_size(vision) // 4
    for name, values in vision.tensors.items():
        if ".attn_q." in name or ".attn_k." in name:
            # [axis, pair, half of a pair] -> [half of a pair, pair, axis]
            apart = values.reshape(-1, 2, quarter, 2, *values.shape[1:])
            vision.tensors[name] = apart.swapaxes(1, 3).reshape(values.shape)
    return kimi(vision, text, vision.key("image_size") // vision.key("patch_size"), "")


class Paired(torch.nn.Module):
    """An encoder and a language model that transformers does not combine."""

    def __init__(self, visual, language_model):
        super().__init__()
        self.visual, self.language_model = visual, language_model

    @property
    def model(self):
        return self

    def tie_weights(self):
        self.language_model.tie_weights()

    def get_image_features(self, **given):
        return transformers.modeling_outputs.BaseModelOutputWithPooling(pooler_output=self.visual(**given))

    def forward(self, input_ids, **given):
        x = self.language_model.get_input_embeddings()(input_ids)
        x[input_ids == PLACEHOLDER] = self.visual(**given)
        return self.language_model(inputs_embeds=x)


class DotsEmbedder(torch.nn.Module):
    """Projects and normalizes patches, as the published class `DotsPatchEmbed` does."""

    def __init__(self, patch, width, epsilon):
        super().__init__()
        self.proj = torch.nn.Linear(3 * patch * patch, width)
        self.norm = torch.nn.RMSNorm(width, eps=epsilon)

    def forward(self, patches):
        return self.norm(self.proj(patches))


class DotsMerger(torch.nn.Module):
    """Normalizes patches, and concatenates and projects the patches of a block, as the published classes
    `DotsVisionTransformer` and `PatchMerger` do."""

    def __init__(self, merge, width, n_out, epsilon):
        super().__init__()
        self.joined = width * merge * merge
        self.post_trunk_norm = torch.nn.RMSNorm(width, eps=epsilon)
        self.ln_q = torch.nn.LayerNorm(width, eps=1e-6)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(self.joined, self.joined), torch.nn.GELU(), torch.nn.Linear(self.joined, n_out))

    def forward(self, x):
        return self.mlp(self.ln_q(self.post_trunk_norm(x)).reshape(-1, self.joined))


class DotsEyes(torch.nn.Module):
    """The published encoder: Qwen2.5-VL blocks without biases and windows."""

    def __init__(self, vision):
        super().__init__()
        depth, epsilon = vision.key("block_count"), vision.key("attention.layer_norm_epsilon")
        patch, merge, width = vision.key("patch_size"), vision.key("projector.scale_factor"), vision.key("embedding_length")
        config = transformers.models.qwen2_5_vl.configuration_qwen2_5_vl.Qwen2_5_VLVisionConfig(
            depth=depth,
            hidden_size=width,
            intermediate_size=vision.key("feed_forward_length"),
            num_heads=vision.key("attention.head_count"),
            patch_size=patch,
            spatial_merge_size=merge,
            fullatt_block_indexes=list(range(depth)),
        )
        kind = transformers.models.qwen2_5_vl.modeling_qwen2_5_vl.Qwen2_5_VisionTransformerPretrainedModel
        self.trunk = kind._from_config(config, attn_implementation="eager")
        set_epsilon(self.trunk.modules(), epsilon)
        for module in self.trunk.blocks.modules():
            if isinstance(module, torch.nn.Linear):
                module.bias = None
        self.trunk.patch_embed = DotsEmbedder(patch, width, epsilon)
        self.trunk.merger = DotsMerger(merge, width, vision.key("projection_dim"), epsilon)

    def forward(self, pixel_values, image_grid_thw):
        return self.trunk(pixel_values, grid_thw=image_grid_thw).pooler_output


DOTS_VISION = {name: tensor for name, tensor in QWEN25_VISION.items() if name.startswith("blocks.")} | {
    "patch_embed.proj": "v.patch_embd",
    "patch_embed.norm": "v.pre_ln",
    "merger.post_trunk_norm": "mm.post_norm",
    "merger.ln_q": "mm.input_norm",
    "merger.mlp.{}": "mm.{}",
}


def dots_ocr(vision, text):
    return dots_with(DotsEyes(vision), DOTS_VISION, vision, text)


def dots_with(visual, parameters, vision, text):
    """An encoder with a language model, the tensors of both, and the inputs of an image."""
    settings = text_config(text) | {"rope_parameters": ROPE}
    settings.pop("head_dim")
    language = transformers.Qwen2ForCausalLM._from_config(transformers.Qwen2Config(**settings), attn_implementation="eager")
    model = Paired(visual, language)
    names = within("visual.trunk", parameters) | within("language_model.model", TEXT | QWEN)
    patch, merge = vision.key("patch_size"), vision.key("spatial_merge_size") or vision.key("projector.scale_factor")

    def inputs(image, ids):
        _, channels, height, width = image.shape
        rows, columns = height // patch, width // patch
        split = image.reshape(channels, rows // merge, merge, patch, columns // merge, merge, patch)
        patches = split.permute(1, 4, 2, 5, 0, 3, 6).reshape(rows * columns, -1)
        return {"pixel_values": patches, "image_grid_thw": torch.tensor([[1, rows, columns]])}

    return model, names, inputs


class Dots3Eyes(DotsEyes):
    """The class of Dots 3 Note in transformers."""

    def __init__(self, trunk):
        torch.nn.Module.__init__(self)
        self.trunk = trunk


DOTS3_VISION = DOTS_VISION | {
    "norm": "mm.post_norm",
    "blocks.{}.attn.q_norm": "v.blk.{}.attn_q_norm",
    "blocks.{}.attn.k_norm": "v.blk.{}.attn_k_norm",
    "blocks.{}.mlp.gate": "v.blk.{}.ffn_gate_inp",
    "blocks.{}.mlp.e_score_correction_bias": "v.blk.{}.exp_probs_b.weight",
    "blocks.{}.mlp.experts.gate_up_proj": "v.blk.{}.ffn_gate_up_exps.weight",
    "blocks.{}.mlp.experts.down_proj": "v.blk.{}.ffn_down_exps.weight",
}


def dots3note_v(vision, text):
    n_experts, width = vision.key("expert_count_per_layer"), vision.key("embedding_length")
    for il in (il for il, n in enumerate(n_experts) if n):
        parts = [vision.tensors.pop(f"v.blk.{il}.ffn_{part}_exps.weight") for part in ("gate", "up")]
        vision.tensors[f"v.blk.{il}.ffn_gate_up_exps.weight"] = np.concatenate(parts, axis=1)
        n_ff_exp = parts[0].shape[1]
    config = transformers.models.dots3_note.configuration_dots3_note.Dots3NoteVisionConfig(
        hidden_size=width,
        intermediate_size=vision.key("feed_forward_length"),
        num_hidden_layers=vision.key("block_count"),
        num_attention_heads=vision.key("attention.head_count"),
        patch_size=vision.key("patch_size"),
        spatial_merge_size=vision.key("spatial_merge_size"),
        moe_intermediate_size=n_ff_exp,
        adapter_in_dim=width,
        adapter_out_dim=vision.key("projection_dim"),
        pyramid_num_routed=[n or -1 for n in n_experts],
        capacity_factor=vision.key("expert_used_count"),
        rms_norm_eps=vision.key("attention.layer_norm_epsilon"),
        rope_parameters={"rope_type": "axial", "rope_theta": 10000.0},
    )
    kind = transformers.models.dots3_note.modeling_dots3_note.Dots3NoteVisionModel
    visual = kind._from_config(config, attn_implementation="eager", experts_implementation="eager")
    return dots_with(Dots3Eyes(visual), DOTS3_VISION, vision, text)


LLAMA4_VISION = {
    "patch_embedding.linear": "v.patch_embd",
    "class_embedding": "v.class_embd",
    "positional_embedding_vlm": "v.position_embd.weight",
    "layernorm_pre": "v.pre_ln",
    "layernorm_post": "v.post_ln",
    "model.layers.{}.input_layernorm": "v.blk.{}.ln1",
    "model.layers.{}.post_attention_layernorm": "v.blk.{}.ln2",
    "model.layers.{}.self_attn.q_proj": "v.blk.{}.attn_q",
    "model.layers.{}.self_attn.k_proj": "v.blk.{}.attn_k",
    "model.layers.{}.self_attn.v_proj": "v.blk.{}.attn_v",
    "model.layers.{}.self_attn.o_proj": "v.blk.{}.attn_out",
    "model.layers.{}.mlp.fc1": "v.blk.{}.ffn_up",
    "model.layers.{}.mlp.fc2": "v.blk.{}.ffn_down",
    "vision_adapter.mlp.fc1": "mm.model.mlp.1",
    "vision_adapter.mlp.fc2": "mm.model.mlp.2",
}

LLAMA4 = {
    "layers.{}.post_attention_layernorm": "blk.{}.ffn_norm",
    "layers.{}.feed_forward.gate_proj": "blk.{}.ffn_gate",
    "layers.{}.feed_forward.up_proj": "blk.{}.ffn_up",
    "layers.{}.feed_forward.down_proj": "blk.{}.ffn_down",
}


class Llama4Eyes(torch.nn.Module):
    """The published class of the whole model fails on the result of its language model."""

    def __init__(self, model):
        super().__init__()
        self.vision_model, self.multi_modal_projector = model.vision_model, model.multi_modal_projector

    def forward(self, pixel_values):
        rows = self.multi_modal_projector(self.vision_model(pixel_values).last_hidden_state)
        return rows.reshape(-1, rows.shape[-1])


def llama4(vision, text):
    settings = text_config(text) | {
        "intermediate_size_mlp": text.key("feed_forward_length"),
        "intermediate_size": text.key("expert_feed_forward_length"),
        "num_local_experts": text.key("expert_count"),
        "num_experts_per_tok": text.key("expert_used_count"),
        "interleave_moe_layer_step": text.key("interleave_moe_layer_step"),
        "attention_chunk_size": 8192,
        "rope_parameters": ROPE,
    }
    n_mid = vision.tensors["mm.model.mlp.1.weight"].shape[0]
    eyes = vision_config(vision) | {
        "norm_eps": vision.key("attention.layer_norm_epsilon"),
        "pixel_shuffle_ratio": 1 / vision.key("projector.scale_factor"),
        "projector_input_dim": n_mid,
        "projector_output_dim": n_mid,
        "vision_output_dim": n_mid,
        "rope_parameters": ROPE,
    }
    # The first projector layer reads concatenated patches.
    eyes["intermediate_size"] = vision.tensors["mm.model.mlp.1.weight"].shape[1]
    config = transformers.Llama4Config(text_config=settings, vision_config=eyes, image_token_index=PLACEHOLDER, tie_word_embeddings=True)
    model = model_of(config)
    width = vision.key("feed_forward_length")
    for layer in model.vision_model.model.layers:
        layer.mlp.fc1 = torch.nn.Linear(vision.key("embedding_length"), width)
        layer.mlp.fc2 = torch.nn.Linear(width, vision.key("embedding_length"))
    # The epsilon of the encoder is hard-coded in the published classes.
    set_epsilon(model.vision_model.modules(), vision.key("attention.layer_norm_epsilon"))
    names = within("visual.vision_model", LLAMA4_VISION) | within("language_model.model", TEXT | LLAMA4)
    names["visual.multi_modal_projector.linear_1"] = "mm.model.fc"
    return Paired(Llama4Eyes(model), model.language_model), names, lambda image, ids: {"pixel_values": image}


EXAONE4 = {
    "layers.{}.self_attn.q_norm": "blk.{}.attn_q_norm",
    "layers.{}.self_attn.k_norm": "blk.{}.attn_k_norm",
    "layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm",
    "layers.{}.post_feedforward_layernorm": "blk.{}.post_ffw_norm",
}


def exaone4_5(vision, text):
    settings = text_config(text) | {"model_type": "exaone4", "rope_parameters": ROPE, "sliding_window": None}
    settings["layer_types"] = ["full_attention"] * settings["num_hidden_layers"]
    interval, depth = vision.key("n_wa_pattern"), vision.key("block_count")
    eyes = qwen_vision(vision) | {
        "hidden_size": vision.key("embedding_length"),
        "intermediate_size": vision.key("feed_forward_length"),
        "num_key_value_heads": vision.key("attention.head_count_kv"),
        "out_hidden_size": vision.key("projection_dim"),
        "window_size": vision.key("window_size"),
        "fullatt_block_indexes": [il for il in range(depth) if (il + 1) % interval == 0],
    }
    config = transformers.Exaone4_5_Config(
        text_config=settings, vision_config=eyes, image_token_id=PLACEHOLDER, video_token_id=126, tie_word_embeddings=True
    )
    model = model_of(config)
    set_epsilon(model.model.visual.modules(), vision.key("attention.layer_norm_epsilon"))
    of_qwen = qwen_inputs(vision)
    inputs = lambda image, ids: {key: value for key, value in of_qwen(image, ids).items() if key != "mm_token_type_ids"}
    return model, within("model.visual", QWEN25_VISION) | within("model.language_model", TEXT | EXAONE4), inputs


MINICPMV46_VISION = VISION | {
    "vit_merger.layer_norm1": "v.vit_merger.ln1",
    "vit_merger.self_attn.q_proj": "v.vit_merger.attn_q",
    "vit_merger.self_attn.k_proj": "v.vit_merger.attn_k",
    "vit_merger.self_attn.v_proj": "v.vit_merger.attn_v",
    "vit_merger.self_attn.out_proj": "v.vit_merger.attn_out",
    "vit_merger.pre_norm": "v.vit_merger.ds_ln",
    "vit_merger.linear_1": "v.vit_merger.ds_ffn_up",
    "vit_merger.linear_2": "v.vit_merger.ds_ffn_down",
}


def columns_of_patches(image, patch):
    """Returns the patches of an image concatenated horizontally: [1, channels, patch, width]."""
    _, channels, height, width = image.shape
    split = image.reshape(channels, height // patch, patch, width // patch, patch)
    return split.permute(0, 2, 1, 3, 4).reshape(1, channels, patch, -1)


def minicpmv4_6(vision, text):
    patch, n_pos = vision.key("patch_size"), vision.tensors["v.position_embd.weight"].shape[0]
    settings = qwen35_text(text) | {"model_type": "qwen3_5_text"}
    (layer,) = vision.key("wa_layer_indexes")
    eyes = vision_config(vision) | {"model_type": "minicpmv4_6_vision", "image_size": round(n_pos**0.5) * patch}
    config = transformers.MiniCPMV4_6Config(
        text_config=settings, vision_config=eyes, insert_layer_id=layer, image_token_id=PLACEHOLDER, video_token_id=126, tie_word_embeddings=True
    )
    model = model_of(config)
    names = within("model.vision_tower", MINICPMV46_VISION) | within("model.language_model", TEXT | QWEN35)
    names |= within("model.merger.mlp.0", {"pre_norm": "mm.input_norm", "linear_1": "mm.up", "linear_2": "mm.down"})

    def inputs(image, ids):
        sizes = torch.tensor([[image.shape[2] // patch, image.shape[3] // patch]], dtype=torch.int32)
        return {"pixel_values": columns_of_patches(image, patch), "target_sizes": sizes}

    return model, names, inputs


class Resampler(torch.nn.Module):
    """Attention of learned queries to patches, as in the published class `Resampler`."""

    def __init__(self, width, n_out, n_query):
        super().__init__()
        self.query = torch.nn.Parameter(torch.zeros(n_query, n_out))
        self.proj = torch.nn.Parameter(torch.zeros(n_out, n_out))
        self.kv_proj = torch.nn.Linear(width, n_out, bias=False)
        self.attn = torch.nn.MultiheadAttention(n_out, n_out // 128)
        self.ln_q, self.ln_kv, self.ln_post = (torch.nn.LayerNorm(n_out, eps=1e-6) for _ in range(3))

    def positions(self, rows, columns):
        n = self.proj.shape[0] // 4
        omega = 10000.0 ** -(torch.arange(n).double() / n)
        down, across = torch.meshgrid(torch.arange(rows).double(), torch.arange(columns).double(), indexing="ij")
        angles = [at.reshape(-1, 1) * omega for at in (across, down)]
        return torch.cat([part for angle in angles for part in (angle.sin(), angle.cos())], dim=1)

    def forward(self, x, rows, columns):
        x = self.ln_kv(self.kv_proj(x))
        y, _ = self.attn(self.ln_q(self.query), x + self.positions(rows, columns), x, need_weights=False)
        return self.ln_post(y) @ self.proj


class ResamplerEyes(torch.nn.Module):
    """The published encoder of MiniCPM-V 2.6: blocks and positions of MiniCPM-V 4.6 without its merger."""

    def __init__(self, vision, side):
        super().__init__()
        settings = vision_config(vision) | {"image_size": side * vision.key("patch_size"), "insert_layer_id": -1}
        config = transformers.models.minicpmv4_6.configuration_minicpmv4_6.MiniCPMV4_6VisionConfig(**settings)
        kind = transformers.models.minicpmv4_6.modeling_minicpmv4_6.MiniCPMV4_6VisionModel
        self.vpm = kind._from_config(config, attn_implementation="eager")
        del self.vpm.vit_merger
        n_query, n_out = vision.tensors["resampler.query"].shape
        self.resampler = Resampler(vision.key("embedding_length"), n_out, n_query)

    def forward(self, pixel_values, target_sizes):
        x = self.vpm(pixel_values, target_sizes=target_sizes).last_hidden_state
        return self.resampler(x[0], *target_sizes[0].tolist())


def resampler(vision, text):
    language = transformers.Qwen2ForCausalLM._from_config(
        transformers.Qwen2Config(**text_config(text) | {"rope_parameters": ROPE}), attn_implementation="eager"
    )
    side = round(vision.tensors["v.position_embd.weight"].shape[0] ** 0.5)
    model = Paired(ResamplerEyes(vision, side), language)
    for suffix in ("weight", "bias"):
        parts = [vision.tensors.pop(f"resampler.attn.{part}.{suffix}") for part in "qkv"]
        vision.tensors[f"resampler.attn.in_proj_{suffix}"] = np.concatenate(parts)
    vision.tensors["resampler.proj"] = vision.tensors.pop("resampler.proj.weight").T
    names = within("visual.vpm", VISION) | within("language_model.model", TEXT | QWEN)
    same = ("query", "proj", "attn.in_proj_weight", "attn.in_proj_bias", "ln_q", "ln_kv", "ln_post")
    names |= within("visual", {f"resampler.{name}": f"resampler.{name}" for name in same})
    names |= within("visual.resampler", {"kv_proj": "resampler.kv", "attn.out_proj": "resampler.attn.out"})
    patch = vision.key("patch_size")

    def inputs(image, ids):
        sizes = torch.tensor([[image.shape[2] // patch, image.shape[3] // patch]], dtype=torch.int32)
        return {"pixel_values": columns_of_patches(image, patch), "target_sizes": sizes}

    return model, names, inputs


GRANITE4_VISION = {
    "image_positions": "img_pos",
    "query": "query",
    "norm": "norm",
    "qformer.layernorm": "post_norm",
    "out_linear": "linear",
    "qformer.encoder.layer.0.attention.attention.query": "self_attn_q",
    "qformer.encoder.layer.0.attention.attention.key": "self_attn_k",
    "qformer.encoder.layer.0.attention.attention.value": "self_attn_v",
    "qformer.encoder.layer.0.attention.output.dense": "self_attn_out",
    "qformer.encoder.layer.0.attention.output.LayerNorm": "self_attn_norm",
    "qformer.encoder.layer.0.crossattention.attention.query": "cross_attn_q",
    "qformer.encoder.layer.0.crossattention.attention.key": "cross_attn_k",
    "qformer.encoder.layer.0.crossattention.attention.value": "cross_attn_v",
    "qformer.encoder.layer.0.crossattention.output.dense": "cross_attn_out",
    "qformer.encoder.layer.0.crossattention.output.LayerNorm": "cross_attn_norm",
    "qformer.encoder.layer.0.intermediate_query.dense": "ffn_up",
    "qformer.encoder.layer.0.output_query.dense": "ffn_down",
    "qformer.encoder.layer.0.output_query.LayerNorm": "ffn_norm",
}


class FeaturesOfGranite(torch.nn.Module):
    """The published model. An image without tiles has only the rows of the whole image; the published class always
    splits images."""

    def __init__(self, model, n_rows):
        super().__init__()
        self.published, self.n_rows = model, n_rows

    @property
    def model(self):
        return self

    def tie_weights(self):
        self.published.tie_weights()

    def outputs(self, pixel_values, image_sizes):
        is_whole = pixel_values.shape[1] == 1
        pixels = torch.cat([pixel_values] * 2, dim=1) if is_whole else pixel_values
        found = self.published.model.get_image_features(pixels, image_sizes, vision_feature_select_strategy="full")
        n = self.n_rows if is_whole else None
        found.deepstack_features = [(layer, [rows[0][:n]]) for layer, rows in found.deepstack_features]
        return found

    def forward(self, input_ids, **given):
        return self.published(input_ids, mm_encoder_outputs={"image": self.outputs(**given)})

    def get_image_features(self, **given):
        found = sorted(self.outputs(**given).deepstack_features, key=lambda pair: pair[0])
        rows = torch.cat([features[0] for _, features in found], dim=1)
        return transformers.modeling_outputs.BaseModelOutputWithPooling(pooler_output=rows)


def granite4_vision(vision, text, grids=None):
    layers, places = vision.key("feature_layer"), vision.key("projector.spatial_offsets")
    mapped = text.key("deepstack_mapping")
    targets = [mapped.index(i) if i else 0 for i in range(len(layers))]
    # The input of a layer is the output of the preceding layer.
    deep = [(layer + 1, target) for layer, place, target in zip(layers, places, targets) if place < 0]
    spatial = [target for place, target in sorted(zip(places, targets)) if place >= 0]
    (sampled,) = {layer for layer, place in zip(layers, places) if place >= 0}
    settings = text_config(text) | {
        "embedding_multiplier": text.key("embedding_scale"),
        "logits_scaling": text.key("logit_scale"),
        "residual_multiplier": text.key("residual_scale") or 1.0,
        "attention_multiplier": text.key("attention.scale") or text_config(text)["head_dim"] ** -0.5,
        "rope_parameters": ROPE,
    }
    settings.pop("head_dim")
    eyes = vision_config(vision) | {"model_type": "siglip_vision_model", "vision_use_head": False}
    width, side = vision.tensors["v.proj_blk.0.ffn_up.weight"].shape[0], vision.key("image_size")
    config = transformers.Granite4VisionConfig(
        text_config=settings,
        vision_config=eyes,
        qformer_config={"model_type": "blip_2_qformer", "num_hidden_layers": 1, "intermediate_size": width, "cross_attention_frequency": 1},
        image_token_index=PLACEHOLDER,
        downsample_rate=f"{vision.key('projector.query_side')}/{vision.key('projector.window_side')}",
        deepstack_layer_map=deep,
        spatial_vision_layer=sampled + 1,
        spatial_target_layers=spatial,
        image_grid_pinpoints=grids or [[side, side]],
        vision_feature_select_strategy="full",
        tie_word_embeddings=True,
    )
    n_queries, n_patches = (vision.key(f"projector.{part}_side") for part in ("query", "window"))
    n_rows = (side // vision.key("patch_size") // n_patches * n_queries) ** 2
    published = model_of(config)
    # The epsilons that are hard-coded in the published classes differ.
    set_epsilon(published.model.vision_tower.modules(), vision.key("attention.layer_norm_epsilon"))
    names = within("published.model.vision_tower", VISION) | within("published.model.language_model", TEXT | LLAMA)
    names["published.model.image_newline"] = "v.image_newline"
    # Files contain this norm, but no graph uses it.
    names["published.model.vision_tower.post_layernorm"] = ""
    kinds = {True: "layerwise", False: "spatial"}
    for kind in (True, False):
        of_kind = [i for i, place in enumerate(places) if (place < 0) == kind]
        for number, i in enumerate(of_kind):
            tensors = {name: f"v.proj_blk.{i}.{tensor}" for name, tensor in GRANITE4_VISION.items()}
            names |= within(f"published.model.{kinds[kind]}_projectors.{number}", tensors)
    return FeaturesOfGranite(published, n_rows), names, lambda image, ids: {"pixel_values": image[None], "image_sizes": torch.tensor([[side, side]])}


class ColumnNorm(torch.nn.LayerNorm):
    """Normalizes the channels of each pixel, with the epsilon of the published class."""

    def __init__(self, width):
        super().__init__(width, eps=1e-5)

    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class SqueezeExcitation(torch.nn.Module):
    def __init__(self, width, squeezed):
        super().__init__()
        self.fc1, self.fc2 = torch.nn.Conv2d(width, squeezed, 1), torch.nn.Conv2d(squeezed, width, 1)

    def forward(self, x):
        mean = torch.nn.functional.adaptive_avg_pool2d(x, 1)
        return x * torch.nn.functional.hardsigmoid(self.fc2(torch.relu(self.fc1(mean))))


class InvertedResidual(torch.nn.Module):
    """Block of MobileNet V3 without expansion, as in the published projector of MobileVLM."""

    def __init__(self, width, squeezed, stride):
        super().__init__()
        taps = torch.nn.Conv2d(width, width, 3, stride, 1, groups=width, bias=False)
        last = torch.nn.Conv2d(width, width, 1, bias=False)
        first = torch.nn.Sequential(taps, ColumnNorm(width), torch.nn.Hardswish())
        self.block = torch.nn.Sequential(first, SqueezeExcitation(width, squeezed), torch.nn.Sequential(last, ColumnNorm(width)))
        self.has_residual = stride == 1

    def forward(self, x):
        return x + self.block(x) if self.has_residual else self.block(x)


class Ldp(torch.nn.Module):
    """The published projector `LDPNetProjector`."""

    def __init__(self, width, n_out, squeezed):
        super().__init__()
        self.mlp = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Linear(width, n_out), torch.nn.GELU(), torch.nn.Linear(n_out, n_out))
        blocks = [InvertedResidual(n_out, squeezed, stride) for stride in (1, 2)]
        self.mb_block = torch.nn.Sequential(torch.nn.Identity(), *blocks)

    def forward(self, x):
        return self.mb_block(grid_of(self.mlp(x)))


class LdpV2(torch.nn.Module):
    """The published projector `LDPNetV2Projector`, which averages squares of 2 x 2 patches."""

    def __init__(self, width, n_out):
        super().__init__()
        self.mlp = torch.nn.Sequential(torch.nn.Linear(width, n_out), torch.nn.GELU(), torch.nn.Linear(n_out, n_out))
        self.peg = torch.nn.Sequential(torch.nn.Conv2d(n_out, n_out, 3, 1, 1, groups=n_out))

    def forward(self, x):
        x = torch.nn.functional.avg_pool2d(grid_of(self.mlp(x)), 2)
        return x + self.peg(x)


def grid_of(x):
    """Returns the columns of a square image: [1, patches, width] -> [1, width, side, side]."""
    side = round(x.shape[1] ** 0.5)
    return x.permute(0, 2, 1).reshape(1, -1, side, side)


class MobileEyes(torch.nn.Module):
    """The published encoder: CLIP without its last layer, which files omit."""

    def __init__(self, vision, projector):
        super().__init__()
        eyes = vision_config(vision) | {"hidden_act": "quick_gelu"}
        eyes["num_hidden_layers"] += 1
        config = transformers.CLIPVisionConfig(**eyes)
        self.vision_tower = transformers.CLIPVisionModel._from_config(config, attn_implementation="eager")
        self.mm = projector

    def forward(self, pixel_values):
        x = self.vision_tower(pixel_values, output_hidden_states=True).hidden_states[-2]
        return self.mm(x[:, 1:]).flatten(2).permute(0, 2, 1)[0]


def mobile(vision, text, projector):
    settings = text_config(text) | {"rope_parameters": ROPE}
    language = transformers.LlamaForCausalLM._from_config(transformers.LlamaConfig(**settings), attn_implementation="eager")
    model = Paired(MobileEyes(vision, projector), language)
    names = within("visual.vision_tower", CLIP_VISION) | within("language_model.model", TEXT | LLAMA)
    last = vision.key("block_count")
    names |= {name.replace("{}", str(last)): "" for name in names if ".layers.{}" in name and "vision" in name}
    for parameter in projector.state_dict():
        name = parameter.rpartition(".")[0]
        names[f"visual.mm.{name}"] = f"mm.model.{name}"
    return model, names, lambda image, ids: {"pixel_values": image}


def ldp(vision, text):
    width, n_out = vision.key("embedding_length"), vision.key("projection_dim")
    squeezed = vision.tensors["mm.model.mb_block.1.block.1.fc1.weight"].shape[0]
    return mobile(vision, text, Ldp(width, n_out, squeezed))


def ldpv2(vision, text):
    return mobile(vision, text, LdpV2(vision.key("embedding_length"), vision.key("projection_dim")))


JANUS_VISION = {name.replace("out_proj", "projection_layer"): tensor for name, tensor in VISION.items()}


def janus_pro(vision, text):
    width = vision.key("embedding_length")
    eyes = vision_config(vision) | {
        "mlp_ratio": vision.key("feed_forward_length") / width,
        "projection_dim": vision.key("projection_dim"),
        "num_image_tokens": (vision.key("image_size") // vision.key("patch_size")) ** 2,
    }
    eyes.pop("intermediate_size")
    # The image generation parts are unused.
    drawing = {"base_channels": 32, "latent_channels": 32, "num_embeddings": 8, "channel_multiplier": [1], "num_res_blocks": 1}
    config = transformers.JanusConfig(
        text_config=text_config(text) | {"model_type": "llama", "rope_parameters": ROPE},
        vision_config=eyes,
        vq_config=drawing,
        image_token_id=PLACEHOLDER,
        tie_word_embeddings=True,
    )
    names = within("model.vision_model", JANUS_VISION) | within("model.language_model", TEXT | LLAMA)
    names |= {"model.aligner.fc1": "mm.0", "model.aligner.hidden_layers.0": "mm.1", "lm_head": "token_embd"}
    return model_of(config), names, lambda image, ids: {"pixel_values": image}


PHI3 = {
    "layers.{}.self_attn.qkv_proj": "blk.{}.attn_q|qkv",
    "layers.{}.mlp.gate_up_proj": "blk.{}.ffn_up",
    "layers.{}.post_attention_layernorm": "blk.{}.ffn_norm",
}


class SiglipEyes(torch.nn.Module):
    """The published encoder and projector of Phi-4 reasoning vision: SigLIP 2 without its last layer, whose output is
    unused."""

    def __init__(self, vision):
        super().__init__()
        settings = vision_config(vision) | {"num_patches": vision.tensors["v.position_embd.weight"].shape[0], "vision_use_head": False}
        settings["num_hidden_layers"] += 1
        self.tower = transformers.Siglip2VisionModel._from_config(transformers.Siglip2VisionConfig(**settings), attn_implementation="eager")
        width, n_out = vision.key("embedding_length"), vision.key("projection_dim")
        self.projector = torch.nn.Sequential(torch.nn.Linear(width, n_out), torch.nn.GELU(), torch.nn.Linear(n_out, n_out))

    def forward(self, **given):
        return self.projector(self.tower(**given, output_hidden_states=True).hidden_states[-2])[0]


def phi4(vision, text):
    settings = text_config(text) | {"rope_parameters": ROPE, "sliding_window": None}
    language = transformers.Phi3ForCausalLM._from_config(transformers.Phi3Config(**settings), attn_implementation="eager")
    last = vision.key("block_count")
    names = VISION | {"post_layernorm": "", "embeddings.patch_embedding": "v.patch_embd|pixels"}
    names |= {name.replace("{}", str(last)): "" for name in VISION if "{}" in name}
    names = within("visual.tower", names) | {"visual.projector.0": "mm.0", "visual.projector.2": "mm.2"}
    names |= within("language_model.model", TEXT | PHI3)
    patch = vision.key("patch_size")

    def inputs(image, ids):
        patches = rows_of_patches(image, patch)
        return {
            "pixel_values": patches,
            "spatial_shapes": torch.tensor([[image.shape[2] // patch, image.shape[3] // patch]]),
            "pixel_attention_mask": torch.ones(patches.shape[:2], dtype=torch.long),
        }

    return Paired(SiglipEyes(vision), language), names, inputs


FAMILIES = {
    "granite4_vision": granite4_vision,
    "ldp": ldp,
    "ldpv2": ldpv2,
    "kimivl": kimivl,
    "kimik25": kimik25,
    "dots_ocr": dots_ocr,
    "dots3note_v": dots3note_v,
    "llama4": llama4,
    "exaone4_5": exaone4_5,
    "minicpmv4_6": minicpmv4_6,
    "resampler": resampler,
    "janus_pro": janus_pro,
    "phi4": phi4,
}


# Heights and widths of the grids of tiles in pixels.
GRIDS = [[48, 96], [96, 48], [96, 96], [48, 144]]


def record_granite_tiles(directory):
    """Writes `granite-tiles.rows` and `granite-tiles.logits`: a row of three tiles after the whole image. Borders are
    black."""
    import record_media
    from record_media import AFTER, BEFORE

    vision, text = (record_media.Seeded(directory / f"granite4_vision{kind}.header.gguf") for kind in ("", "-text"))
    model, names, _ = granite4_vision(vision, text, GRIDS)
    model = model.double().eval()
    record_media.load(model, names, vision.tensors | text.tensors, text_config(text)["head_dim"])
    side, image, (height, width) = vision.key("image_size"), (50, 170), GRIDS[3]
    scaled = transformers.image_processing_utils.get_patch_output_size(np.zeros((1, *image)), (height, width), "channels_first")
    top, left = (height - scaled[0]) // 2, (width - scaled[1]) // 2
    canvas = np.zeros((height, width, 3), dtype=np.uint8)
    canvas[top : top + scaled[0], left : left + scaled[1]] = record_media.pixels(scaled[1], scaled[0])
    tiles = [canvas[:, x : x + side] for x in range(0, width, side)]
    images = torch.stack([record_media.normalized(vision, tile)[0] for tile in [record_media.pixels(side, side), *tiles]])[None]
    given = {"pixel_values": images, "image_sizes": torch.tensor([image])}
    text_ids = [(i * 37 + 11) % PLACEHOLDER for i in range(BEFORE + AFTER)]
    with torch.no_grad():
        rows = model.get_image_features(**given).pooler_output.numpy()
        tokens = text_ids[:BEFORE] + [PLACEHOLDER] * len(rows) + text_ids[BEFORE:]
        logits = model(input_ids=torch.tensor([tokens]), **given).logits[0].numpy()
    record_media.write(directory / "granite-tiles.rows", list(range(len(rows))), rows)
    record_media.write(directory / "granite-tiles.logits", tokens, logits)
