"""Published implementations of DeepSeek-OCR and DeepSeek-OCR 2 for `record_media.py`."""

import numpy as np
import torch
import transformers

from record_media import PLACEHOLDER, TEXT, VISION, text_config, within
from record_media_families import ROPE
from record_media_newer import Paired


class Clip(torch.nn.Module):
    """The published encoder `VitModel` of DeepSeek-OCR: CLIP over features, with a position table that is resized to
    them."""

    def __init__(self, vision):
        super().__init__()
        width, n_pos = vision.key("embedding_length"), vision.tensors["v.position_embd.weight"].shape[0]
        config = transformers.CLIPVisionConfig(
            hidden_size=width,
            intermediate_size=vision.tensors["v.blk.0.ffn_up.weight"].shape[0],
            num_hidden_layers=vision.key("block_count"),
            num_attention_heads=vision.key("attention.head_count"),
            hidden_act="quick_gelu",
            layer_norm_eps=1e-5,
        )
        tower = transformers.CLIPVisionModel._from_config(config, attn_implementation="sdpa")
        self.encoder, self.pre_layrnorm = tower.encoder, tower.pre_layrnorm
        self.class_embedding = torch.nn.Parameter(torch.zeros(width))
        self.position_embedding = torch.nn.Embedding(n_pos, width)

    def forward(self, features):
        table = self.position_embedding.weight
        side, n = features.shape[-1], round((len(table) - 1) ** 0.5)
        square = table[1:].reshape(1, n, n, -1).permute(0, 3, 1, 2)
        if side != n:
            square = torch.nn.functional.interpolate(square, size=(side, side), mode="bicubic", antialias=True, align_corners=False)
        x = (features + square).flatten(2).permute(0, 2, 1)
        first = (self.class_embedding + table[0]).expand(len(x), 1, -1)
        x = self.pre_layrnorm(torch.cat([first, x], dim=1))
        return self.encoder(inputs_embeds=x).last_hidden_state[:, 1:]


def sam_of(vision):
    """The published SAM of DeepSeek-OCR 2, identical to the SAM of DeepSeek-OCR."""
    shape = lambda name: vision.tensors[f"v.sam.{name}.weight"].shape
    side, patch = shape("pos_embd")[0], round((shape("patch_embd")[-1] / 3) ** 0.5)
    n_layer = vision.key("sam.block_count")
    config = transformers.models.deepseek_ocr2.configuration_deepseek_ocr2.DeepseekOcr2SamVisionConfig(
        hidden_size=vision.key("sam.embedding_length"),
        output_channels=shape("neck.0")[0],
        num_hidden_layers=n_layer,
        num_attention_heads=vision.key("sam.head_count"),
        image_size=side * patch,
        patch_size=patch,
        window_size=vision.key("window_size"),
        global_attn_indexes=list(range(2, n_layer, 3)),
        mlp_dim=shape("blk.0.mlp.lin1")[0],
        downsample_channels=[shape("net_2")[0], shape("net_3")[0]],
    )
    kind = transformers.models.deepseek_ocr2.modeling_deepseek_ocr2.DeepseekOcr2SamVisionEncoder
    return kind._from_config(config, attn_implementation="sdpa")


class DeepseekEyes(torch.nn.Module):
    """The published encoder of DeepSeek-OCR."""

    def __init__(self, vision):
        super().__init__()
        self.sam = sam_of(vision)
        self.clip = Clip(vision)
        width, n_out = vision.key("embedding_length"), vision.key("projection_dim")
        self.fc = torch.nn.Linear(2 * width, n_out)
        self.image_newline, self.view_separator = (torch.nn.Parameter(torch.zeros(n_out)) for _ in range(2))

    def projected(self, images):
        features = self.sam(images).last_hidden_state
        rows = self.fc(torch.cat([self.clip(features), features.flatten(2).permute(0, 2, 1)], dim=2))
        return rows.reshape(len(rows), features.shape[-1], -1, rows.shape[-1])

    def in_lines(self, grid):
        return torch.cat([grid, self.image_newline.expand(len(grid), 1, -1)], dim=1).flatten(0, 1)

    def forward(self, pixel_values, tiles=None, columns=0):
        parts = []
        if tiles is not None:
            lines = self.projected(tiles)
            _, side, _, width = lines.shape
            lines = lines.reshape(-1, columns, side, side, width).permute(0, 2, 1, 3, 4)
            parts.append(self.in_lines(lines.reshape(-1, columns * side, width)))
        parts += [self.in_lines(self.projected(pixel_values)[0]), self.view_separator[None]]
        return torch.cat(parts)


class QueryEyes(torch.nn.Module):
    """The published encoder of DeepSeek-OCR 2. The table sizes are hard-coded in the published class."""

    def __init__(self, vision):
        super().__init__()
        self.sam = sam_of(vision)
        width, n_out = vision.key("embedding_length"), vision.key("projection_dim")
        config = transformers.models.deepseek_ocr2.configuration_deepseek_ocr2.DeepseekOcr2VisionEncoderConfig(
            hidden_size=width,
            intermediate_size=vision.key("feed_forward_length"),
            num_hidden_layers=vision.key("block_count"),
            num_attention_heads=vision.key("attention.head_count"),
            num_key_value_heads=vision.key("attention.head_count_kv"),
            rms_norm_eps=vision.key("attention.layer_norm_epsilon"),
            rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
        )
        kind = transformers.models.deepseek_ocr2.modeling_deepseek_ocr2.DeepseekOcr2VisionEncoder
        self.encoder = kind._from_config(config, attn_implementation="eager")
        n_queries = [len(vision.tensors[f"v.resample_query_{side}.weight"]) for side in (1024, 768)]
        self.queries, self.tile_queries = (torch.nn.Embedding(n, width) for n in n_queries)
        self.fc = torch.nn.Linear(width, n_out)
        self.view_separator = torch.nn.Parameter(torch.zeros(n_out))

    def projected(self, images):
        features = self.sam(images).last_hidden_state.flatten(2).permute(0, 2, 1)
        n = features.shape[1]
        (queries,) = (table.weight for table in (self.queries, self.tile_queries) if len(table.weight) == n)
        both = torch.cat([features, queries.expand(len(images), -1, -1)], dim=1)
        rows = self.encoder(inputs_embeds=both, num_patches=n).last_hidden_state[:, n:]
        return self.fc(rows).flatten(0, 1)

    def forward(self, pixel_values, tiles=None, columns=0):
        parts = [] if tiles is None else [self.projected(tiles)]
        return torch.cat([*parts, self.projected(pixel_values), self.view_separator[None]])


SAM_VISION = {
    "pos_embed": "v.sam.pos_embd.weight",
    "patch_embed.projection": "v.sam.patch_embd",
    "layers.{}.layer_norm1": "v.sam.blk.{}.pre_ln",
    "layers.{}.layer_norm2": "v.sam.blk.{}.post_ln",
    "layers.{}.attn.qkv": "v.sam.blk.{}.attn.qkv",
    "layers.{}.attn.proj": "v.sam.blk.{}.attn.out",
    "layers.{}.attn.rel_pos_h": "v.sam.blk.{}.attn.pos_h.weight",
    "layers.{}.attn.rel_pos_w": "v.sam.blk.{}.attn.pos_w.weight",
    "layers.{}.mlp.lin1": "v.sam.blk.{}.mlp.lin1",
    "layers.{}.mlp.lin2": "v.sam.blk.{}.mlp.lin2",
    "neck.conv1": "v.sam.neck.0",
    "neck.layer_norm1": "v.sam.neck.1",
    "neck.conv2": "v.sam.neck.2",
    "neck.layer_norm2": "v.sam.neck.3",
    "proj.conv1": "v.sam.net_2",
    "proj.conv2": "v.sam.net_3",
}


def with_language(eyes, names, text):
    """An encoder with a Llama language model without experts."""
    settings = text_config(text) | {"rope_parameters": ROPE}
    language = transformers.LlamaForCausalLM._from_config(transformers.LlamaConfig(**settings), attn_implementation="eager")
    names |= within("visual.sam", SAM_VISION)
    # The file stores rotary pairs in NeoX order.
    names |= within("language_model.model", TEXT | {"layers.{}.post_attention_layernorm": "blk.{}.ffn_norm"})
    return Paired(eyes, language), names, lambda image, ids: {"pixel_values": image}


def deepseekocr(vision, text):
    clip = {name: tensor for name, tensor in VISION.items() if name.startswith("encoder.")} | {
        "class_embedding": "v.class_embd",
        "position_embedding": "v.position_embd",
        "pre_layrnorm": "v.pre_ln",
    }
    rows = {"fc": "mm.model.fc", "image_newline": "v.image_newline", "view_separator": "v.view_seperator"}
    return with_language(DeepseekEyes(vision), within("visual.clip", clip) | within("visual", rows), text)


QUERY_VISION = {
    "encoder.layers.{}.input_layernorm": "v.blk.{}.ln1",
    "encoder.layers.{}.post_attention_layernorm": "v.blk.{}.ln2",
    "encoder.layers.{}.self_attn.q_proj": "v.blk.{}.attn_q",
    "encoder.layers.{}.self_attn.k_proj": "v.blk.{}.attn_k",
    "encoder.layers.{}.self_attn.v_proj": "v.blk.{}.attn_v",
    "encoder.layers.{}.self_attn.o_proj": "v.blk.{}.attn_out",
    "encoder.layers.{}.mlp.gate_proj": "v.blk.{}.ffn_gate",
    "encoder.layers.{}.mlp.up_proj": "v.blk.{}.ffn_up",
    "encoder.layers.{}.mlp.down_proj": "v.blk.{}.ffn_down",
    "encoder.norm": "v.post_ln",
    "queries": "v.resample_query_1024",
    "tile_queries": "v.resample_query_768",
    "fc": "mm.model.fc",
    "view_separator": "v.view_seperator",
}


def deepseekocr2(vision, text):
    return with_language(QueryEyes(vision), within("visual", QUERY_VISION), text)


FAMILIES = {"deepseekocr": deepseekocr, "deepseekocr2": deepseekocr2}


def record_deepseek_tiles(directory):
    """Writes `deepseek-tiles.rows` and `deepseek-tiles.logits`, and `deepseek2-tiles` with the same suffixes: a row of
    three tiles before the whole image, which is padded with borders."""
    for family, name in (("deepseekocr", "deepseek-tiles"), ("deepseekocr2", "deepseek2-tiles")):
        record_tiles_of(directory, family, name)


def record_tiles_of(directory, family, name):
    import record_media
    from record_media import AFTER, BEFORE

    vision, text = (record_media.Seeded(directory / f"{family}{kind}.header.gguf") for kind in ("", "-text"))
    model, names, _ = FAMILIES[family](vision, text)
    model = model.double().eval()
    record_media.load(model, names, vision.tensors | text.tensors, text_config(text)["head_dim"])
    side, tile, height = 64, vision.key("preproc_tile_size"), 23
    whole = np.zeros((side, side, 3), dtype=np.uint8)
    top = round((side - height) / 2)
    whole[top : top + height] = record_media.pixels(side, height)
    split = record_media.pixels(3 * tile, tile)
    tiles = torch.cat([record_media.normalized(vision, split[:, x : x + tile]) for x in range(0, 3 * tile, tile)])
    given = {"pixel_values": record_media.normalized(vision, whole), "tiles": tiles, "columns": 3}
    text_ids = [(i * 37 + 11) % PLACEHOLDER for i in range(BEFORE + AFTER)]
    with torch.no_grad():
        rows = model.get_image_features(**given).pooler_output.numpy()
        tokens = text_ids[:BEFORE] + [PLACEHOLDER] * len(rows) + text_ids[BEFORE:]
        logits = model(input_ids=torch.tensor([tokens]), **given).logits[0].numpy()
    record_media.write(directory / f"{name}.rows", list(range(len(rows))), rows)
    record_media.write(directory / f"{name}.logits", tokens, logits)
