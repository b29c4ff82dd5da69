"""Published implementations of encoders with learned rows between the patches, for `record_media.py`."""

import numpy as np
import torch
import transformers

from record_media import PLACEHOLDER, QWEN, TEXT, text_config, within
from record_media_families import model_of, planes_of_patches
from record_media_newer import Paired


HUNYUAN_VISION = {
    "embeddings.patch_embedding": "v.patch_embd",
    "embeddings.position_embedding": "v.position_embd",
    "layers.{}.layer_norm1": "v.blk.{}.ln1",
    "layers.{}.layer_norm2": "v.blk.{}.ln2",
    "layers.{}.self_attn.q_proj": "v.blk.{}.attn_q",
    "layers.{}.self_attn.k_proj": "v.blk.{}.attn_k",
    "layers.{}.self_attn.v_proj": "v.blk.{}.attn_v",
    "layers.{}.self_attn.o_proj": "v.blk.{}.attn_out",
    "layers.{}.mlp.fc1": "v.blk.{}.ffn_up",
    "layers.{}.mlp.fc2": "v.blk.{}.ffn_down",
    "patch_merger.proj_conv": "mm.0",
    "patch_merger.proj_out": "mm.2",
    "patch_merger.mlp": "mm.model.fc",
    "patch_merger.image_newline": "v.image_newline",
    "patch_merger.image_begin": "mm.image_begin",
    "patch_merger.image_end": "mm.image_end",
    "patch_merger.before_rms": "mm.pre_norm",
    "patch_merger.after_rms": "mm.post_norm",
}

HUNYUAN = QWEN | {
    "layers.{}.self_attn.query_layernorm": "blk.{}.attn_q_norm",
    "layers.{}.self_attn.key_layernorm": "blk.{}.attn_k_norm",
}


def hunyuan_positions(self, embeddings, height, width):
    """The position table as in the code of the published weights, with the scale of a grid that is 0.1 patches larger,
    as in DINO."""
    side = self.position_edge
    table = self.position_embedding.weight[1:].reshape(1, side, side, -1).permute(0, 3, 1, 2)
    scale = ((float(height) + 0.1) / side, (float(width) + 0.1) / side)
    y = torch.nn.functional.interpolate(table, scale_factor=scale, mode="bilinear", align_corners=False)
    return y.permute(0, 2, 3, 1).reshape(1, height * width, -1)


def hunyuan_frequencies(self, values):
    """Rotary sections as in the code of the published weights, where both values of a pair belong to one axis."""
    both, n = torch.cat([values, values], dim=-1), len(self.mrope_section)
    return torch.cat([part[i % n] for i, part in enumerate(both.split(self.mrope_section * 2, dim=-1))], dim=-1)


def hunyuanvl(vision, text):
    from transformers.models.hunyuan_vl import modeling_hunyuan_vl as published

    published.HunYuanVLVisionPatchEmbed.interpolate_pos_encoding = hunyuan_positions
    published.HunYuanVLRotaryEmbedding.recomposition_frequencies = hunyuan_frequencies
    sections = list(text.key("rope.dimension_sections"))
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 1.0, "alpha": text.key("rope.scaling.alpha"), "mrope_section": sections}
    special = {"image_token_id": PLACEHOLDER, "im_start_id": 125, "im_end_id": 124, "im_newline_id": 126}
    eyes = {
        "hidden_size": vision.key("embedding_length"),
        "intermediate_size": vision.key("feed_forward_length"),
        "num_hidden_layers": vision.key("block_count"),
        "num_attention_heads": vision.key("attention.head_count"),
        "patch_size": vision.key("patch_size"),
        "max_image_size": vision.key("image_size"),
        "spatial_merge_size": vision.key("spatial_merge_size"),
        "rms_norm_eps": vision.key("attention.layer_norm_epsilon"),
        "text_hidden_size": vision.key("projection_dim"),
        "out_hidden_size": vision.key("projection_dim"),
    }
    config = transformers.HunYuanVLConfig(text_config=text_config(text) | {"rope_parameters": rope}, vision_config=eyes, tie_word_embeddings=True, **special)
    # Files omit the first row, which belongs to no patch.
    table = vision.tensors["v.position_embd.weight"]
    vision.tensors["v.position_embd.weight"] = np.concatenate([np.zeros((1, table.shape[1])), table])
    names = within("model.vision_tower", HUNYUAN_VISION) | within("model.language_model", TEXT | HUNYUAN)
    patch = vision.key("patch_size")

    def inputs(image, ids):
        grid = torch.tensor([[1, image.shape[2] // patch, image.shape[3] // patch]])
        patches = planes_of_patches(image, patch).flatten(1)
        return {"pixel_values": patches, "image_grid_thw": grid, "mm_token_type_ids": (ids == PLACEHOLDER).long()}

    return model_of(config), names, inputs


RADIO_VISION = {
    "embeddings.position_embedding": "v.position_embd.weight",
    "embeddings.cls_register_token": "v.class_embd",
    "embeddings.patch_projection": "v.patch_embd",
    "encoder.layer.{}.norm1": "v.blk.{}.ln1",
    "encoder.layer.{}.norm2": "v.blk.{}.ln2",
    "encoder.layer.{}.attention.q_proj": "v.blk.{}.attn_q",
    "encoder.layer.{}.attention.k_proj": "v.blk.{}.attn_k",
    "encoder.layer.{}.attention.v_proj": "v.blk.{}.attn_v",
    "encoder.layer.{}.attention.o_proj": "v.blk.{}.attn_out",
    "encoder.layer.{}.mlp.fc1": "v.blk.{}.ffn_up",
    "encoder.layer.{}.mlp.fc2": "v.blk.{}.ffn_down",
}


class RadioEyes(torch.nn.Module):
    """The published image encoder and projector of Nemotron 3 Nano Omni."""

    def __init__(self, vision):
        super().__init__()
        from transformers.models.nemotron_h_omni import modeling_nemotron_h_omni as published

        width, side, merge = vision.key("embedding_length"), vision.key("image_size"), vision.key("projector.scale_factor")
        n_class = 3
        config = transformers.RadioConfig(
            hidden_size=width,
            num_hidden_layers=vision.key("block_count"),
            num_attention_heads=vision.key("attention.head_count"),
            mlp_ratio=vision.key("feed_forward_length") / width,
            layer_norm_eps=vision.key("attention.layer_norm_epsilon"),
            patch_size=vision.key("patch_size"),
            image_size=side,
            max_img_size=side,
            num_cls_tokens=n_class,
            num_registers=vision.key("n_registers") - n_class,
        )
        self.vision = transformers.RadioModel._from_config(config, attn_implementation="eager")
        self.vision.make_preprocessor_external()
        n_mid = len(vision.tensors["mm.model.mlp.1.weight"])
        self.projector = published.NemotronH_Omni_Reasoning_V3MultiModalProjector(width * merge**2, n_mid, vision.key("projection_dim"))
        self.shuffled = lambda x: published.NemotronH_Omni_Reasoning_V3.pixel_shuffle(None, x, 1 / merge)

    def forward(self, pixel_values):
        x = self.vision(pixel_values).features
        side = round(x.shape[1] ** 0.5)
        return self.projector(self.shuffled(x.reshape(1, side, side, -1)).flatten(0, 2))


class PairedNemotron(Paired):
    """The published language model has a separate output matrix."""

    def tie_weights(self):
        self.language_model.lm_head.weight = self.language_model.get_input_embeddings().weight


def nemotron_v2_vl(vision, text):
    from record_audio import NEMOTRON_H, nemotron_h

    for il in range(vision.key("block_count")):
        for kind in ("weight", "bias"):
            parts = np.split(vision.tensors.pop(f"v.blk.{il}.attn_qkv.{kind}"), 3)
            vision.tensors |= {f"v.blk.{il}.attn_{part}.{kind}": values for part, values in zip("qkv", parts)}
    names = within("visual.vision", RADIO_VISION) | within("language_model.model", NEMOTRON_H)
    names |= {"visual.projector.layer_norm": "mm.model.mlp.0", "visual.projector.linear_1": "mm.model.mlp.1", "visual.projector.linear_2": "mm.model.mlp.3"}
    return PairedNemotron(RadioEyes(vision), nemotron_h(text)), names, lambda image, ids: {"pixel_values": image}


FAMILIES = {"hunyuanvl": hunyuanvl, "nemotron_v2_vl": nemotron_v2_vl}


def record_two_images(directory):
    """Writes `hunyuanvl-two.logits`: a prompt with the same image twice."""
    import record_media
    from record_media import AFTER, BEFORE

    vision, text = (record_media.Seeded(directory / f"hunyuanvl{kind}.header.gguf") for kind in ("", "-text"))
    model, names, inputs = hunyuanvl(vision, text)
    model = model.double().eval()
    record_media.load(model, names, vision.tensors | text.tensors, text_config(text)["head_dim"])
    image = record_media.normalized(vision, record_media.pixels(*record_media.SIZE))
    text_ids = [(i * 37 + 11) % PLACEHOLDER for i in range(BEFORE + AFTER)]
    with torch.no_grad():
        given = inputs(image, torch.tensor([]))
        given.pop("mm_token_type_ids")
        n_rows = len(record_media.first(model.model.get_image_features(**given).pooler_output))
        tokens = text_ids[:BEFORE] + [PLACEHOLDER] * n_rows + text_ids[BEFORE : BEFORE + 4] + [PLACEHOLDER] * n_rows + text_ids[BEFORE + 4 :]
        ids = torch.tensor([tokens])
        twice = {name: torch.cat([value] * 2) for name, value in given.items()}
        logits = model(input_ids=ids, mm_token_type_ids=(ids == PLACEHOLDER).long(), **twice).logits[0].numpy()
    record_media.write(directory / "hunyuanvl-two.logits", tokens, logits)
