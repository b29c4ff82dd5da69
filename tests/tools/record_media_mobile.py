"""Published vision encoder of Gemma 3n for `record_media.py`: MobileNetV5 from timm."""

import timm
import torch
import transformers
from timm.models._efficientnet_builder import decode_arch_def
from timm.models.mobilenetv5 import MobileNetV5MultiScaleFusionAdapter

from record_media import PLACEHOLDER, TEXT, text_config, within
from record_media_families import ROPE, model_of

# Number of leading layers with sparse gates and with own keys, and the period of full-attention layers, as in the
# published models.
SPARSE, OWN_KEYS, PERIOD = 10, 20, 5

STAGES = {
    module: f"v.blk.{{}}.{module}"
    for module in (
        "conv_exp",
        "bn1",
        "conv_pwl",
        "bn2",
        "dw_start.conv",
        "dw_start.bn",
        "pw_exp.conv",
        "pw_exp.bn",
        "dw_mid.conv",
        "dw_mid.bn",
        "pw_proj.conv",
        "pw_proj.bn",
        "layer_scale.gamma",
        "norm",
        "attn.query.proj",
        "attn.key.proj",
        "attn.key.down_conv",
        "attn.key.norm",
        "attn.value.proj",
        "attn.value.down_conv",
        "attn.value.norm",
        "attn.output.proj",
    )
}

GEMMA3N = {
    "embed_tokens_per_layer": "per_layer_token_embd",
    "per_layer_model_projection": "per_layer_model_proj",
    "per_layer_projection_norm": "per_layer_proj_norm",
    "layers.{}.self_attn.q_norm": "blk.{}.attn_q_norm",
    "layers.{}.self_attn.k_norm": "blk.{}.attn_k_norm",
    "layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm",
    "layers.{}.pre_feedforward_layernorm": "blk.{}.ffn_norm",
    "layers.{}.post_feedforward_layernorm": "blk.{}.post_ffw_norm",
    "layers.{}.laurel.linear_left": "blk.{}.laurel_l",
    "layers.{}.laurel.linear_right": "blk.{}.laurel_r",
    "layers.{}.laurel.post_laurel_norm": "blk.{}.laurel_post_norm",
    "layers.{}.altup.correction_coefs": "blk.{}.altup_correct_coef",
    "layers.{}.altup.prediction_coefs": "blk.{}.altup_predict_coef",
    "layers.{}.altup.modality_router": "blk.{}.altup_router",
    "layers.{}.altup.router_norm": "blk.{}.altup_router_norm",
    "layers.{}.altup.correct_output_scale": "blk.{}.altup_correct_scale.weight",
    "layers.{}.per_layer_input_gate": "blk.{}.inp_gate",
    "layers.{}.per_layer_projection": "blk.{}.proj",
    "layers.{}.post_per_layer_input_norm": "blk.{}.post_norm",
}


def stages(vision):
    """Returns the blocks in timm's notation."""
    width, depth = ([vision.key(f"stage{i}.{part}") for i in range(4)] for part in ("embedding_length", "block_count"))
    sizes, queries = ([vision.key(f"stage{i}.{part}_length") for i in (2, 3)] for part in ("key", "query"))
    heads = [n // size for n, size in zip(queries, sizes)]
    plain = vision.key("stage2.plain_block_count")
    near, far = f"mqa_r1_k3_h{heads[0]}_v2_s1_d{sizes[0]}_c{width[2]}", f"mqa_r1_k3_h{heads[1]}_s1_d{sizes[1]}_c{width[3]}"

    def alternate(attention, width, n):
        return [f"uir_r1_a0_k0_s1_e2_c{width}" if i % 2 else attention for i in range(n)]

    return [
        [f"er_r1_k3_s{1 if i else 2}_e4_c{width[0]}" for i in range(depth[0])],
        [f"uir_r1_a3_k5_s2_e6_c{width[1]}"] + [f"uir_r1_a{5 if i % 2 else 3}_k0_s1_e4_c{width[1]}" for i in range(1, depth[1])],
        [f"uir_r1_a5_k5_s2_e6_c{width[2]}"]
        + [f"uir_r1_a5_k0_s1_e4_c{width[2]}"] * (plain - 1)
        + [f"uir_r1_a0_k0_s1_e1_c{width[2]}"]
        + alternate(near, width[2], depth[2] - plain - 1),
        [f"uir_r1_a5_k5_s2_e6_c{width[3]}"] + alternate(far, width[3], depth[3] - 1),
    ]


def tower(vision):
    """The published encoder with other blocks, and an adapter with other numbers of channels and outputs."""
    blocks = decode_arch_def(stages(vision))
    encoder = timm.create_model("mobilenetv5_300m_enc", block_args=blocks, stem_size=vision.key("stem.embedding_length"))
    size, side = vision.key("embedding_length"), vision.key("projector.side")
    act = type(encoder.conv_stem.bn.act), encoder.conv_stem.bn.act.approximate
    assert act == (torch.nn.GELU, "tanh")
    adapter = MobileNetV5MultiScaleFusionAdapter(in_chs=encoder.msfa_in_chs, out_chs=size, output_resolution=side)
    encoder.msfa = adapter
    return encoder


def gemma3n_text(text):
    n_layer = text.key("block_count")
    # The published table contains no rows for media tokens.
    text.tensors["per_layer_token_embd.weight"] = text.tensors["per_layer_token_embd.weight"][:PLACEHOLDER]
    n_ff = text.key("feed_forward_length")
    return text_config(text) | {
        "intermediate_size": [n_ff] * n_layer,
        "vocab_size_per_layer_input": PLACEHOLDER,
        "layer_types": ["sliding_attention" if il % PERIOD < PERIOD - 1 else "full_attention" for il in range(n_layer)],
        "sliding_window": text.key("attention.sliding_window"),
        "num_kv_shared_layers": n_layer - OWN_KEYS,
        "activation_sparsity_pattern": [0.95] * SPARSE + [0.0] * (n_layer - SPARSE),
        "rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE},
        "pad_token_id": 0,
    }


def sample_deviation(self, inputs):
    """Returns the values above a threshold. Deviations are sample deviations, as in llama.cpp. The published class
    divides by n instead of n - 1."""
    cutoff = inputs.mean(-1, keepdim=True) + inputs.std(-1, keepdim=True) * torch.distributions.Normal(0, 1).icdf(torch.tensor(self.activation_sparsity))
    return torch.relu(inputs - cutoff)


def gemma3nv(vision, text):
    # The published class computes norms in float32.
    torch.Tensor.float = torch.Tensor.double
    gemma3n = transformers.models.gemma3n.modeling_gemma3n
    gemma3n.Gemma3nTextMLP._gaussian_topk = sample_deviation
    ears = {"hidden_size": 16, "conf_num_hidden_layers": 1, "conf_num_attention_heads": 1}
    eyes = {"hidden_size": vision.key("embedding_length"), "model_args": {}}
    # The configuration class builds the published encoder, which is replaced afterwards.
    config = transformers.Gemma3nConfig(
        text_config=gemma3n_text(text),
        vision_config=eyes,
        audio_config=ears,
        image_token_id=PLACEHOLDER,
        audio_token_id=1 << 20,
        vision_soft_tokens_per_image=vision.key("projector.side") ** 2,
        tie_word_embeddings=True,
    )
    model = model_of(config)
    model.model.vision_tower.timm_model = tower(vision)
    names = within("model.language_model", TEXT | GEMMA3N)
    for part, tensor in (("altup_projections", "altup_proj"), ("altup_unembed_projections", "altup_unembd_proj")):
        stack = text.tensors.pop(f"{tensor}.weight")
        for i, matrix in enumerate(stack):
            text.tensors[f"{tensor}.{i}.weight"] = matrix
            names[f"model.language_model.{part}.{i}"] = f"{tensor}.{i}"
    timm_model = "model.vision_tower.timm_model"
    for stage, blocks in enumerate(model.model.vision_tower.timm_model.blocks):
        for block in range(len(blocks)):
            for module, tensor in STAGES.items():
                names[f"{timm_model}.blocks.{stage}.{block}.{module}"] = tensor.replace("{}", f"{stage}.{block}")
    names |= within(timm_model, {"conv_stem.conv": "v.conv_stem.conv", "conv_stem.bn": "v.conv_stem.bn", "msfa.norm": "v.msfa.norm"})
    for part in ("pw_exp", "pw_proj"):
        names |= {f"{timm_model}.msfa.ffn.{part}.{kind}": f"v.msfa.ffn.{part}.{kind}" for kind in ("conv", "bn")}
    names["model.embed_vision.embedding_projection"] = "mm.input_projection"
    names["model.embed_vision.soft_embedding_norm"] = "mm.soft_emb_norm"
    return model, names, lambda image, ids: {"pixel_values": image}


FAMILIES = {"gemma3nv": gemma3nv}
