"""Published encoders of Ling 3, Youtu-VL, and MiMo-V2.5 for `record_media.py`. transformers has no classes for them.
The recording of Ling 3 modifies the class of Qwen3.5; the other modules reimplement the published computation."""

import math

import torch

from record_media import LLAMA, QWEN35, QWEN3_VISION, TEXT, qwen3_vision, qwen35_text, qwen_model, within
from record_media_newer import Paired
from record_media_windows import blocks_of_patches, language_of


def ling3vl(vision, text):
    names = QWEN3_VISION | {"merger.norm": "mm.input_norm"}
    model, names, inputs = qwen_model("Qwen3_5", vision, qwen3_vision(vision), qwen35_text(text), names, QWEN35)
    # Concatenated patches are projected directly to the width of the language model.
    merger, n_out = model.model.visual.merger, vision.key("projection_dim")
    merger.linear_fc1 = torch.nn.Linear(merger.linear_fc1.in_features, n_out)
    merger.linear_fc2 = torch.nn.Linear(n_out, n_out)
    return model, names, inputs


def places(grid, merge):
    """Returns line and column of each patch, block by block: [patches, 2]."""
    rows, columns = grid
    at = torch.stack(torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij"), dim=-1)
    return at.reshape(rows // merge, merge, columns // merge, merge, 2).permute(0, 2, 1, 3, 4).reshape(-1, 2)


def rotated(x, at):
    """Rotates `x` [patches, heads, size]. Half of the pairs rotate by the line, and the other half by the column."""
    size = x.shape[-1]
    frequencies = 10000.0 ** -(torch.arange(0, size // 2, 2).double() / (size // 2))
    angles = (at[:, :, None] * frequencies).reshape(len(at), 1, size // 2)
    first, second = x.split(size // 2, dim=-1)
    return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], dim=-1)


def attended(q, k, v, scores):
    """Attention for queries [patches, heads, size] with keys shared in groups and additive score biases: [patches,
    heads * size]."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    products = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5 + scores
    return torch.einsum("hqk,khd->qhd", products.softmax(-1), v).flatten(1)


class YoutuLayer(torch.nn.Module):
    def __init__(self, width, n_ff, n_head, eps):
        super().__init__()
        self.n_head = n_head
        self.layer_norm1, self.layer_norm2 = (torch.nn.LayerNorm(width, eps=eps) for _ in range(2))
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (torch.nn.Linear(width, width) for _ in range(4))
        self.fc1, self.fc2 = torch.nn.Linear(width, n_ff), torch.nn.Linear(n_ff, width)

    def forward(self, x, at, scores):
        h = self.layer_norm1(x)
        q, k, v = (matrix(h).unflatten(1, (self.n_head, -1)) for matrix in (self.q_proj, self.k_proj, self.v_proj))
        x = x + self.out_proj(attended(rotated(q, at), rotated(k, at), v, scores))
        return x + self.fc2(torch.nn.functional.gelu(self.fc1(self.layer_norm2(x)), approximate="tanh"))


class YoutuEyes(torch.nn.Module):
    """SigLIP 2 with windows, and a projector of concatenated patches."""

    def __init__(self, vision):
        super().__init__()
        width, eps = vision.key("embedding_length"), vision.key("attention.layer_norm_epsilon")
        sizes = width, vision.key("feed_forward_length"), vision.key("attention.head_count"), eps
        self.merge, self.window = vision.key("spatial_merge_size"), vision.key("window_size") // vision.key("patch_size")
        self.whole, joined = vision.key("wa_layer_indexes"), width * self.merge**2
        self.patch_embedding = torch.nn.Linear(3 * vision.key("patch_size") ** 2, width)
        self.layers = torch.nn.ModuleList(YoutuLayer(*sizes) for _ in range(vision.key("block_count")))
        self.post_layernorm, self.ln_q = torch.nn.LayerNorm(width, eps=eps), torch.nn.RMSNorm(width, eps=1e-6)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(joined, joined), torch.nn.GELU(), torch.nn.Linear(joined, vision.key("projection_dim")))

    def forward(self, pixel_values, grid):
        x, at = self.patch_embedding(pixel_values), places(grid, self.merge)
        windows = at // self.window
        is_near = (windows[:, None] == windows).all(-1)
        outside = torch.zeros(is_near.shape).double().masked_fill(~is_near, -torch.inf)
        for il, layer in enumerate(self.layers):
            x = layer(x, at, 0 if il in self.whole else outside)
        return self.mlp(self.ln_q(self.post_layernorm(x)).reshape(-1, self.mlp[0].in_features))


YOUTU_VISION = {
    "patch_embedding": "v.patch_embd",
    "layers.{}.layer_norm1": "v.blk.{}.ln1",
    "layers.{}.layer_norm2": "v.blk.{}.ln2",
    "layers.{}.q_proj": "v.blk.{}.attn_q",
    "layers.{}.k_proj": "v.blk.{}.attn_k",
    "layers.{}.v_proj": "v.blk.{}.attn_v",
    "layers.{}.out_proj": "v.blk.{}.attn_out",
    "layers.{}.fc1": "v.blk.{}.ffn_up",
    "layers.{}.fc2": "v.blk.{}.ffn_down",
    "post_layernorm": "v.post_ln",
    "ln_q": "mm.input_norm",
    "mlp.0": "mm.0",
    "mlp.2": "mm.2",
}


def youtuvl(vision, text):
    patch, merge = vision.key("patch_size"), vision.key("spatial_merge_size")

    def inputs(image, ids):
        _, channels, height, width = image.shape
        rows, columns = height // patch, width // patch
        split = image.reshape(channels, rows // merge, merge, patch, columns // merge, merge, patch)
        # The colors of a pixel are adjacent.
        return {"pixel_values": split.permute(1, 4, 2, 5, 3, 6, 0).reshape(rows * columns, -1), "grid": (rows, columns)}

    names = within("visual", YOUTU_VISION) | within("language_model.model", TEXT | LLAMA)
    return Paired(YoutuEyes(vision), language_of("Llama", text)), names, inputs


class MimoLayer(torch.nn.Module):
    def __init__(self, vision, has_bias):
        super().__init__()
        width, n_ff, eps = vision.key("embedding_length"), vision.key("feed_forward_length"), vision.key("attention.layer_norm_epsilon")
        self.heads = vision.key("attention.head_count"), vision.key("attention.head_count_kv")
        self.norm1, self.norm2 = (torch.nn.RMSNorm(width, eps=eps) for _ in range(2))
        n_values = len(vision.tensors["v.blk.0.attn_qkv.weight"])
        self.size = n_values // (self.heads[0] + 2 * self.heads[1])
        self.qkv, self.proj = torch.nn.Linear(width, n_values), torch.nn.Linear(self.heads[0] * self.size, width)
        self.gate_proj, self.up_proj, self.down_proj = torch.nn.Linear(width, n_ff), torch.nn.Linear(width, n_ff), torch.nn.Linear(n_ff, width)
        self.sinks = torch.nn.Parameter(torch.zeros(self.heads[0])) if has_bias else None

    def forward(self, x, at, outside):
        all_heads = self.qkv(self.norm1(x)).unflatten(1, (-1, self.size))
        q, k, v = all_heads.split((self.heads[0], self.heads[1], self.heads[1]), dim=1)
        scores = outside.repeat(self.heads[0], 1, 1)
        if self.sinks is not None:
            scores[:, :, 0] += self.sinks[:, None]
        x = x + self.proj(attended(rotated(q, at), rotated(k, at), v, scores))
        h = self.norm2(x)
        return x + self.down_proj(torch.nn.functional.silu(self.gate_proj(h)) * self.up_proj(h))


class MimoEyes(torch.nn.Module):
    """An encoder and a projector of concatenated patches. The first patch is first in both orders."""

    def __init__(self, vision):
        super().__init__()
        width, self.merge, self.near = vision.key("embedding_length"), vision.key("spatial_merge_size"), vision.key("window_size")
        self.orders, joined = vision.key("wa_pattern_mode"), width * self.merge**2
        self.patch_embed = torch.nn.Linear(6 * vision.key("patch_size") ** 2, width, bias=False)
        self.layers = torch.nn.ModuleList(MimoLayer(vision, order >= 0) for order in self.orders)
        self.ln_q = torch.nn.LayerNorm(width, eps=1e-6, bias=False)
        n_out = vision.key("projection_dim")
        first, last = torch.nn.Linear(joined, joined, bias=False), torch.nn.Linear(joined, n_out, bias=False)
        self.mlp = torch.nn.Sequential(first, torch.nn.GELU(), last)

    def forward(self, pixel_values, image_grid_thw):
        _, rows, columns = image_grid_thw[0].tolist()
        x, at, merge = self.patch_embed(pixel_values), places((rows, columns), self.merge), self.merge
        across, down = columns // merge, rows // merge
        block = torch.arange(across * down)
        by_column = (block % across) * down + block // across
        in_order = {0: torch.arange(len(x)), 1: (by_column[:, None] * merge**2 + torch.arange(merge**2)).flatten()}
        for layer, order in zip(self.layers, self.orders):
            outside = torch.zeros(len(x), len(x)).double()
            if order >= 0:
                distance = (in_order[order][:, None] - in_order[order]).abs()
                outside[distance > self.near] = -torch.inf
            x = layer(x, at, outside)
        return self.mlp(self.ln_q(x).reshape(-1, self.mlp[0].in_features))


MIMO_VISION = {
    "patch_embed": "v.patch_embd|frames",
    "layers.{}.norm1": "v.blk.{}.ln1",
    "layers.{}.norm2": "v.blk.{}.ln2",
    "layers.{}.qkv": "v.blk.{}.attn_qkv",
    "layers.{}.proj": "v.blk.{}.attn_out",
    "layers.{}.sinks": "v.blk.{}.attn_sinks",
    "layers.{}.gate_proj": "v.blk.{}.ffn_gate",
    "layers.{}.up_proj": "v.blk.{}.ffn_up",
    "layers.{}.down_proj": "v.blk.{}.ffn_down",
    "ln_q": "v.post_ln",
    "mlp.0": "mm.0",
    "mlp.2": "mm.2",
}


def mimovl(vision, text):
    names = within("visual", MIMO_VISION) | within("language_model.model", TEXT | LLAMA)
    return Paired(MimoEyes(vision), language_of("Llama", text)), names, blocks_of_patches(vision)


FAMILIES = {"ling3vl": ling3vl, "youtuvl": youtuvl, "mimovl": mimovl}


def stepped(width, height, unit, most):
    """Returns the size of an image for Youtu-VL by llama.cpp's rule, in 64 bits. No package contains the published
    image processor."""
    scale = 1.0
    while True:
        size = [max(unit, math.ceil(side * scale / unit) * unit) for side in (width, height)]
        if size[0] * size[1] <= most * unit**2 or scale <= 0:
            return size
        scale -= 0.02


def targets(random):
    """Returns lines of `targets.txt` for Youtu-VL."""
    lines = []
    for i in range(200):
        longest = 16384 if i % 2 else 900
        width, height = (1 + random(2 * i + j) % longest for j in range(2))
        if max(width, height) <= 200 * min(width, height):
            most = (64, 9216)[i // 2 % 2]
            lines.append(["stepped", 32, most, width, height, *stepped(width, height, 32, most)])
    return lines
