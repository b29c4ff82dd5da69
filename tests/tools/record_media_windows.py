"""Published implementations of Step3-VL, Muse Glimmer, GLM 5.3, and MiniMax M3 for `record_media.py`."""

import re
import types

import numpy as np
import torch
import transformers

from record_media import LLAMA, PLACEHOLDER, QWEN3, TEXT, qwen_inputs, text_config, vision_config, within
from record_media_families import GLM4V_VISION, ROPE
from record_media_newer import Paired


def language_of(kind, text):
    """A published language model without experts."""
    config = getattr(transformers, f"{kind}Config")(**text_config(text) | {"rope_parameters": ROPE})
    return getattr(transformers, f"{kind}ForCausalLM")._from_config(config, attn_implementation="eager")


class WindowEyes(torch.nn.Module):
    """The published encoder and projector of Step3-VL. The published class derives the feed-forward size from a
    ratio."""

    def __init__(self, vision):
        super().__init__()
        module = transformers.models.step3p7
        ratio = vision.key("feed_forward_length") / vision.key("embedding_length")
        rope = {"rope_type": "axial", "rope_theta": 10000.0}
        config = module.configuration_step3p7.Step3p7VisionConfig(**vision_config(vision) | {"mlp_ratio": ratio, "rope_parameters": rope})
        # The number of positions does not depend on the image size, which has a default in the class.
        config.image_size = round(vision.tensors["v.position_embd.weight"].shape[0] ** 0.5) * config.patch_size
        self.tower = module.modeling_step3p7.Step3p7VisionModel._from_config(config, attn_implementation="eager")
        self.projector = torch.nn.Linear(4 * vision.key("embedding_length"), vision.key("projection_dim"), bias=False)

    def forward(self, pixel_values, tiles=None):
        """Returns the rows of the tiles in order, then the rows of the whole image."""
        images = [pixel_values] if tiles is None else [tiles, pixel_values]
        return torch.cat([self.projector(self.tower(part).last_hidden_state).flatten(0, 1) for part in images])


STEP3_VISION = {
    "tower.embeddings.patch_embedding": "v.patch_embd",
    "tower.embeddings.position_embedding": "v.position_embd",
    "tower.pre_layernorm": "v.pre_ln",
    # Published weights rotate adjacent values, as files do.
    "tower.layers.{}.self_attn.q_proj": "v.blk.{}.attn_q|halves",
    "tower.layers.{}.self_attn.k_proj": "v.blk.{}.attn_k|halves",
    "tower.layers.{}.self_attn.v_proj": "v.blk.{}.attn_v",
    "tower.layers.{}.self_attn.out_proj": "v.blk.{}.attn_out",
    "tower.layers.{}.layernorm_before": "v.blk.{}.ln1",
    "tower.layers.{}.layernorm_after": "v.blk.{}.ln2",
    "tower.layers.{}.lambda_1": "v.blk.{}.ls1.weight",
    "tower.layers.{}.lambda_2": "v.blk.{}.ls2.weight",
    "tower.layers.{}.mlp.fc1": "v.blk.{}.ffn_up",
    "tower.layers.{}.mlp.fc2": "v.blk.{}.ffn_down",
    "tower.downsampler1": "mm.0",
    "tower.downsampler2": "mm.1",
    "projector": "mm.model.fc",
}


def step3vl(vision, text):
    names = within("visual", STEP3_VISION) | within("language_model.model", TEXT | QWEN3)
    return Paired(WindowEyes(vision), language_of("Qwen3", text)), names, lambda image, ids: {"pixel_values": image}


class GlimmerEyes(torch.nn.Module):
    """The published encoder and projector of Muse Glimmer. Its language model normalizes the rows like token
    embeddings."""

    def __init__(self, vision):
        super().__init__()
        module = transformers.models.muse_glimmer
        side = round(vision.tensors["v.position_embd.weight"].shape[0] ** 0.5)
        shape = vision.tensors["mm.0.weight"].shape
        eyes = vision_config(vision) | {
            "hidden_act": "gelu",
            "pos_emb_height": side,
            "pos_emb_width": side,
            "merge_size": vision.key("spatial_merge_size"),
            "max_position_embeddings": side * side,
            "rope_parameters": {"rope_type": "axial", "rope_theta": 10000.0},
        }
        eyes.pop("image_size")
        config = module.configuration_muse_glimmer.MuseGlimmerVisionConfig(**eyes)
        self.tower = module.modeling_muse_glimmer.MuseGlimmerVisionModel._from_config(config, attn_implementation="eager")
        self.fc1 = torch.nn.Linear(shape[1], shape[0], bias=False)
        self.fc2 = torch.nn.Linear(shape[0], shape[0], bias=False)
        self.projection = torch.nn.Linear(shape[0], vision.key("projection_dim"), bias=False)
        self.adapter = module.modeling_muse_glimmer.MuseGlimmerVisionAdapter.forward
        self.act = torch.nn.GELU()

    def forward(self, pixel_values, grid_thw):
        return self.projection(self.adapter(self, self.tower(pixel_values, grid_thw).last_hidden_state))


GLIMMER_VISION = {
    "tower.patch_embedder.patch_embedding": "v.patch_embd|frames",
    "tower.patch_embedder.position_embedding_table": "v.position_embd",
    "tower.ln_pre": "v.pre_ln",
    "tower.ln_post": "v.post_ln",
    "tower.layers.{}.norm1": "v.blk.{}.ln1",
    "tower.layers.{}.norm2": "v.blk.{}.ln2",
    # Queries and keys in the file rotate adjacent values.
    "tower.layers.{}.attn.q_proj": "v.blk.{}.attn_q|halves",
    "tower.layers.{}.attn.k_proj": "v.blk.{}.attn_k|halves",
    "tower.layers.{}.attn.v_proj": "v.blk.{}.attn_v",
    "tower.layers.{}.attn.proj": "v.blk.{}.attn_out",
    "tower.layers.{}.mlp.fc1": "v.blk.{}.ffn_up",
    "tower.layers.{}.mlp.fc2": "v.blk.{}.ffn_down",
    "fc1": "mm.0",
    "fc2": "mm.1",
    "projection": "mm.2",
}


def muse_glimmer(vision, text):
    eyes, patch = GlimmerEyes(vision), vision.key("patch_size")
    # The file stores the sum of the weights of both frames, which are equal for an image.
    width = eyes.tower.patch_embedder.patch_embedding.in_features // 2
    eyes.tower.patch_embedder.patch_embedding = torch.nn.Linear(width, vision.key("embedding_length"), bias=False)
    names = within("visual", GLIMMER_VISION | {"tower.patch_embedder.patch_embedding": "v.patch_embd"})
    names |= within("language_model.model", TEXT | LLAMA)

    def inputs(image, ids):
        _, channels, height, width = image.shape
        split = image.reshape(channels, height // patch, patch, width // patch, patch).permute(1, 3, 0, 2, 4)
        return {"pixel_values": split.reshape(-1, channels * patch * patch), "grid_thw": torch.tensor([[1, height // patch, width // patch]])}

    return Paired(eyes, language_of("Llama", text)), names, inputs


def blocks_of_patches(vision):
    """Returns a function from a normalized image to rows with both frames of each patch, in block order, and the
    grid."""
    of_qwen = qwen_inputs(vision)

    def inputs(image, ids):
        given = of_qwen(image, ids)
        return {name: given[name] for name in ("pixel_values", "image_grid_thw")}

    return inputs


class Glm5Eyes(torch.nn.Module):
    """The published encoder of GLM 5.3."""

    def __init__(self, vision):
        super().__init__()
        module = transformers.models.glm5_next
        config = module.configuration_glm5_next.Glm5NextVisionConfig(
            depth=vision.key("block_count"),
            hidden_size=vision.key("embedding_length"),
            num_heads=vision.key("attention.head_count"),
            patch_size=vision.key("patch_size"),
            rms_norm_eps=vision.key("attention.layer_norm_epsilon"),
            spatial_merge_size=vision.key("spatial_merge_size"),
            out_hidden_size=vision.key("projection_dim"),
            intermediate_size=vision.key("feed_forward_length"),
            projection_intermediate_size=vision.tensors["mm.up.weight"].shape[0],
            swiglu_limit=vision.key("swiglu_clamp"),
            rope_parameters={"rope_type": "axial", "rope_theta": 10000.0},
        )
        self.tower = module.modeling_glm5_next.Glm5NextVisionModel._from_config(config, attn_implementation="eager")

    def forward(self, pixel_values, image_grid_thw):
        return self.tower(pixel_values, grid_thw=image_grid_thw).pooler_output


def glm5v(vision, text):
    names = {name: tensor for name, tensor in GLM4V_VISION.items() if tensor not in ("v.norm_embd", "v.position_embd")}
    names |= {"blocks.{}.attn.q_norm": "v.blk.{}.attn_q_norm", "blocks.{}.attn.k_norm": "v.blk.{}.attn_k_norm"}
    names = within("visual.tower", names) | within("language_model.model", TEXT | LLAMA)
    return Paired(Glm5Eyes(vision), language_of("Llama", text)), names, blocks_of_patches(vision)


class MinimaxEyes(torch.nn.Module):
    """The published encoder and projector of MiniMax M3."""

    def __init__(self, vision):
        super().__init__()
        module = transformers.models.minimax_m3_vl
        eyes = vision_config(vision) | {
            "spatial_merge_size": vision.key("spatial_merge_size"),
            "rope_parameters": {"rope_type": "axial", "rope_theta": 10000.0},
        }
        eyes.pop("image_size")
        eyes = module.configuration_minimax_m3_vl.MiniMaxM3VLVisionConfig(**eyes)
        self.tower = module.modeling_minimax_m3_vl.MiniMaxM3VLVisionModel._from_config(eyes, attn_implementation="eager")
        n_out, n_mid = vision.key("projection_dim"), len(vision.tensors["mm.1.weight"])
        sizes = {"text_config": types.SimpleNamespace(hidden_size=n_out), "vision_config": eyes}
        sizes |= {"projector_hidden_size": n_mid, "merged_hidden_size": n_out * eyes.spatial_merge_size**2}
        self.projector = module.modeling_minimax_m3_vl.MiniMaxM3VLMultiModalProjector(types.SimpleNamespace(**sizes))

    def forward(self, pixel_values, image_grid_thw):
        return self.projector(self.tower(pixel_values, grid_thw=image_grid_thw).last_hidden_state.flatten(0, -2))


MINIMAX_VISION = {
    "tower.embeddings.proj": "v.patch_embd|frames",
    "tower.pre_layrnorm": "v.pre_ln",
    "tower.layers.{}.self_attn.q_proj": "v.blk.{}.attn_q",
    "tower.layers.{}.self_attn.k_proj": "v.blk.{}.attn_k",
    "tower.layers.{}.self_attn.v_proj": "v.blk.{}.attn_v",
    "tower.layers.{}.self_attn.out_proj": "v.blk.{}.attn_out",
    "tower.layers.{}.layer_norm1": "v.blk.{}.ln1",
    "tower.layers.{}.layer_norm2": "v.blk.{}.ln2",
    "tower.layers.{}.mlp.fc1": "v.blk.{}.ffn_up",
    "tower.layers.{}.mlp.fc2": "v.blk.{}.ffn_down",
    "projector.linear_1": "mm.1",
    "projector.linear_2": "mm.2",
    "projector.merge_linear_1": "mm.merger.fc1",
    "projector.merge_linear_2": "mm.merger.fc2",
}


def minimax_m3(vision, text):
    # The file stores the halves of each axis adjacently.
    n_head, size = vision.key("attention.head_count"), vision.key("embedding_length") // vision.key("attention.head_count")
    half = size // 6
    order = [2 * half * axis + half * second + i for second in range(2) for axis in range(3) for i in range(half)]
    order += range(6 * half, size)
    for name, values in vision.tensors.items():
        if ".attn_q." in name or ".attn_k." in name:
            vision.tensors[name] = values.reshape(n_head, size, -1)[:, order].reshape(values.shape)
    names = within("visual", MINIMAX_VISION) | within("language_model.model", TEXT | LLAMA)
    return Paired(MinimaxEyes(vision), language_of("Llama", text)), names, blocks_of_patches(vision)


FAMILIES = {"step3vl": step3vl, "muse-glimmer": muse_glimmer, "glm5v": glm5v, "minimax_m3": minimax_m3}


def step3_processor(tile, side, longest):
    """The published image processor of Step3-VL for other sizes than the hard-coded ones."""
    kind = transformers.models.step3p7.image_processing_step3p7.Step3p7ImageProcessor
    return kind(size={"height": side, "width": side}, patch_size=tile, max_image_size=longest)


def extended_sizes():
    """Returns a function that maps an image size to its size in the published preprocessing of GLM 5.3, without and
    with borders."""
    module = transformers.models.glm5_next.image_processing_pil_glm5_next
    processor, found = module.Glm5NextImageProcessorPil(), {}

    def resized(image, size, resample):
        found["size"] = [size.width, size.height]
        return np.broadcast_to(np.uint8(0), (1, size.height, size.width))

    def sizes(width, height, unit, least, most):
        found["size"] = [width, height]
        image = np.broadcast_to(np.uint8(0), (1, height, width))
        given = {"factor": unit, "temporal_factor": 2, "min_image_tokens": least, "max_image_tokens": most}
        whole = processor.resize(image, resample=None, **given)
        return [*found["size"], whole.shape[2], whole.shape[1]]

    module.PilBackend.resize = lambda self, image, size, resample: resized(image, size, resample)
    return sizes


def targets(random):
    """Returns lines of `targets.txt` for these encoders."""
    extended, lines, module = extended_sizes(), [], transformers.models.muse_glimmer.image_processing_muse_glimmer
    # If two sizes have equal ratios, the published function takes the first one in a set. The recordings use the
    # larger one, as llama.cpp does.
    module.set = lambda sizes: sorted(sizes, reverse=True)
    for i in range(200):
        longest = 16384 if i % 2 else 900
        width, height = (1 + random(2 * i + j) % longest for j in range(2))
        if max(width, height) > 200 * min(width, height):
            continue
        most = (64, 4096)[i // 2 % 2]
        lines.append(["closest", 28, most, width, height, *module.smart_resize(height, width, 28, most)[::-1]])
        least, most = ((16, 8000), (8, 80))[i // 2 % 2]
        lines.append(["extended", 28, least, most, width, height, *extended(width, height, 28, least, most)])
        tile, side, longest = ((504, 728, 3024), (448, 672, 2048))[i // 2 % 2]
        plan = step3_processor(tile, side, longest)._plan_patches(width, height, side, tile)
        _, cut, window, columns, rows, _ = plan
        lines.append(["windows", tile, side, longest, width, height, *([columns, rows, *cut, window, window] if window else [])])
    return lines


def record_step3_tiles(directory):
    """Writes `step3vl-tiles.rows` and `step3vl-tiles.logits`: two rows of two tiles before the whole image, with the texts around each."""
    import record_media
    from record_media import AFTER, BEFORE

    vision, text = (record_media.Seeded(directory / f"step3vl{kind}.header.gguf") for kind in ("", "-text"))
    model, names, _ = step3vl(vision, text)
    model = model.double().eval()
    record_media.load(model, names, vision.tensors | text.tensors, text_config(text)["head_dim"])
    side, tile, longest = (vision.key(key) for key in ("image_size", "preproc_tile_size", "preproc_image_size"))
    processor = step3_processor(tile, side, longest)
    _, (width, height), window, columns, rows, _ = processor._plan_patches(100, 90, side, tile)
    assert (width, height, window, columns, rows) == (2 * tile, 2 * tile, tile, 2, 2)
    whole, split = record_media.pixels(side, side), record_media.pixels(width, height)
    corners = [(y, x) for y in range(0, height, tile) for x in range(0, width, tile)]
    tiles = torch.cat([record_media.normalized(vision, split[y : y + tile, x : x + tile]) for y, x in corners])
    given = {"pixel_values": record_media.normalized(vision, whole), "tiles": tiles}
    publish = transformers.models.step3p7.processing_step3p7.Step3p7Processor
    prompt = publish.__new__(publish)
    stride = vision.key("patch_size") * 4
    prompt.patch_feature_placeholder, prompt.image_feature_placeholder = ("<im_patch>" * (n // stride) ** 2 for n in (tile, side))
    words = prompt.replace_image_token({"num_local_patches": [4], "patch_newline_masks": [[False, True, False, False]]}, 0)
    ids = dict(zip(["<patch_start>", "<patch_end>", "<patch_newline>", "<im_start>", "<im_end>"], range(1, 6))) | {"<im_patch>": PLACEHOLDER}
    text_ids = [(i * 37 + 11) % PLACEHOLDER for i in range(BEFORE + AFTER)]
    tokens = text_ids[:BEFORE] + [ids[word] for word in re.findall("<[a-z_]+>", words)] + text_ids[BEFORE:]
    with torch.no_grad():
        rows = model.get_image_features(**given).pooler_output.numpy()
        logits = model(input_ids=torch.tensor([tokens]), **given).logits[0].numpy()
    record_media.write(directory / "step3vl-tiles.rows", list(range(len(rows))), rows)
    record_media.write(directory / "step3vl-tiles.logits", tokens, logits)
