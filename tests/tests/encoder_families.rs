//! Encoders and language models of the tests in `encoders`.

use engine::conformance::Draft;

/// Sizes of a language model.
type Sizes = &'static [(&'static str, f64)];

/// An encoder with a language model that reads its rows.
pub(crate) struct Family {
    /// Name of the recordings.
    pub name: &'static str,
    pub encoder: &'static str,
    /// Sizes of the encoder, in addition to the sizes of its declaration.
    pub encoder_sizes: Sizes,
    pub text: &'static str,
    /// Width and height of the image in pixels.
    pub image: [usize; 2],
    pub sizes: Sizes,
    /// Tensors of the encoder that the published model has no bias for.
    pub without_bias: &'static [&'static str],
    /// Optional tensors of the language model.
    pub text_optional: &'static [&'static str],
    /// Tensors of the language model that have a bias.
    pub text_biases: &'static [&'static str],
    /// Matrices in the layers of the encoder have bounds.
    pub has_bounds: bool,
}

pub(crate) const FAMILIES: [Family; 40] = [
    // The last rows of the image do not attend to the first tokens, because of the window.
    Family {
        name: "gemma3",
        encoder: "gemma3",
        encoder_sizes: &[],
        text: "gemma3",
        image: [112, 112],
        sizes: &[
            ("n_embd", 64.0),
            ("n_head", 4.0),
            ("n_head_kv", 2.0),
            ("head_dim", 32.0),
            ("head_dim_v", 32.0),
            ("n_layer", 3.0),
            ("n_ff", 96.0),
            ("n_vocab", 128.0),
            ("n_swa", 20.0),
            ("swa_pattern", 2.0),
        ],
        without_bias: &[],
        text_optional: &[],
        text_biases: &[],
        has_bounds: false,
    },
    Family {
        name: "idefics3",
        encoder: "idefics3",
        encoder_sizes: &[],
        text: "llama",
        image: [112, 112],
        sizes: &[
            ("n_embd", 64.0),
            ("n_head", 4.0),
            ("n_head_kv", 2.0),
            ("n_layer", 2.0),
            ("n_ff", 96.0),
            ("n_vocab", 128.0),
        ],
        without_bias: &["mm.model.fc"],
        text_optional: &[],
        text_biases: &[],
        has_bounds: false,
    },
    // The image is not a square, nor are its sides multiples of a window.
    Family {
        name: "qwen2vl_merger",
        encoder: "qwen2vl_merger",
        encoder_sizes: &[],
        text: "qwen2vl",
        image: [112, 80],
        sizes: &[
            ("n_embd", 64.0),
            ("n_head", 4.0),
            ("n_head_kv", 2.0),
            ("n_layer", 3.0),
            ("n_ff", 96.0),
            ("n_vocab", 128.0),
            ("rms_norm_eps", 1e-5),
        ],
        without_bias: &["v.patch_embd"],
        text_optional: &[],
        text_biases: &["attn_q", "attn_k", "attn_v"],
        has_bounds: false,
    },
    Family {
        name: "qwen2.5vl_merger",
        encoder: "qwen2.5vl_merger",
        encoder_sizes: &[],
        text: "qwen2vl",
        image: [112, 80],
        sizes: &[
            ("n_embd", 64.0),
            ("n_head", 4.0),
            ("n_head_kv", 2.0),
            ("n_layer", 3.0),
            ("n_ff", 96.0),
            ("n_vocab", 128.0),
            ("rms_norm_eps", 1e-5),
        ],
        without_bias: &["v.patch_embd"],
        text_optional: &[],
        text_biases: &["attn_q", "attn_k", "attn_v"],
        has_bounds: false,
    },
    Family {
        name: "qwen3vl_merger",
        encoder: "qwen3vl_merger",
        encoder_sizes: &[],
        text: "qwen3vl",
        image: [112, 80],
        sizes: &[
            ("n_embd", 64.0),
            ("n_head", 4.0),
            ("n_head_kv", 2.0),
            ("n_layer", 3.0),
            ("n_ff", 96.0),
            ("n_vocab", 128.0),
            ("n_deep", 2.0),
        ],
        without_bias: &[],
        text_optional: &[],
        text_biases: &[],
        has_bounds: false,
    },
    // No features for the first layers, gated delta nets, and partial rotation.
    Family {
        name: "qwen35",
        encoder: "qwen3vl_merger",
        encoder_sizes: &[("deep", 0.0)],
        text: "qwen35",
        image: [112, 80],
        sizes: QWEN35,
        without_bias: &[],
        text_optional: &["attn_qkv"],
        text_biases: &[],
        has_bounds: false,
    },
    Family {
        name: "pixtral",
        encoder: "pixtral",
        encoder_sizes: &[],
        text: "mistral3",
        image: [112, 80],
        sizes: LLAMA,
        without_bias: WITHOUT_BIAS,
        text_optional: &[],
        text_biases: &[],
        has_bounds: false,
    },
    Family {
        name: "internvl",
        encoder: "internvl",
        encoder_sizes: &[],
        text: "qwen2",
        image: [48, 48],
        sizes: LLAMA,
        without_bias: &[],
        text_optional: &[],
        text_biases: &["attn_q", "attn_k", "attn_v"],
        has_bounds: false,
    },
    Family {
        name: "lfm2",
        encoder: "lfm2",
        encoder_sizes: &[],
        text: "lfm2",
        image: [80, 56],
        sizes: &[
            ("n_embd", 64.0),
            ("n_head", 4.0),
            ("n_head_kv", 2.0),
            ("n_layer", 2.0),
            ("n_ff", 96.0),
            ("n_vocab", 128.0),
            ("l_cache", 3.0),
        ],
        without_bias: &[],
        text_optional: &[],
        text_biases: &[],
        has_bounds: false,
    },
    Family {
        name: "mlp",
        encoder: "mlp",
        encoder_sizes: &[],
        text: "llama",
        image: [48, 48],
        sizes: LLAMA,
        without_bias: &["v.patch_embd"],
        text_optional: &[],
        text_biases: &[],
        has_bounds: false,
    },
    // Media rows attend to each other in layers with windows. The last two layers share keys with earlier layers.
    Family {
        name: "gemma4v",
        encoder: "gemma4v",
        encoder_sizes: &[],
        text: "gemma4",
        image: [120, 72],
        sizes: &[
            ("n_embd", 64.0),
            ("n_head", 4.0),
            ("n_head_kv", 2.0),
            ("head_dim", 32.0),
            ("head_dim_v", 32.0),
            ("head_dim_swa", 16.0),
            ("head_dim_v_swa", 16.0),
            ("n_rot_swa", 16.0),
            ("n_layer", 4.0),
            ("n_sharing", 2.0),
            ("n_ff", 96.0),
            ("n_vocab", 128.0),
            ("n_swa", 20.0),
            ("n_pl", 0.0),
        ],
        without_bias: WITHOUT_BIAS,
        text_optional: &["attn_v", "layer_output_scale"],
        text_biases: &[],
        has_bounds: true,
    },
    Family {
        name: "lightonocr",
        encoder: "lightonocr",
        encoder_sizes: &[],
        text: "qwen3",
        image: [112, 80],
        sizes: LLAMA,
        without_bias: WITHOUT_BIAS,
        text_optional: &[],
        text_biases: &[],
        has_bounds: false,
    },
    Family {
        name: "paddleocr",
        encoder: "paddleocr",
        encoder_sizes: &[],
        text: "paddleocr",
        image: [112, 80],
        sizes: LLAMA,
        without_bias: &[],
        text_optional: &[],
        text_biases: &[],
        has_bounds: false,
    },
    Family {
        name: "glm4v",
        encoder: "glm4v",
        encoder_sizes: &[],
        text: "glm4",
        image: [112, 80],
        sizes: LLAMA,
        without_bias: &[
            "attn_q",
            "attn_k",
            "attn_v",
            "attn_out",
            "ffn_gate",
            "ffn_up",
            "ffn_down",
            "mm.model.fc",
            "mm.gate",
            "mm.up",
            "mm.down",
        ],
        text_optional: &[],
        text_biases: &["attn_q", "attn_k", "attn_v"],
        has_bounds: false,
    },
    Family {
        name: "kimivl",
        encoder: "kimivl",
        text: "deepseek2",
        sizes: LATENT,
        ..PLAIN
    },
    Family {
        name: "kimik25",
        encoder: "kimik25",
        text: "deepseek2",
        sizes: LATENT,
        ..PLAIN
    },
    // No layers.
    Family {
        name: "gemma4uv",
        encoder: "gemma4uv",
        text: "gemma4",
        image: [120, 72],
        sizes: &[
            ("n_embd", 64.0),
            ("n_head", 4.0),
            ("n_head_kv", 2.0),
            ("head_dim", 32.0),
            ("head_dim_v", 32.0),
            ("head_dim_swa", 16.0),
            ("head_dim_v_swa", 16.0),
            ("n_rot_swa", 16.0),
            ("n_layer", 2.0),
            ("n_ff", 96.0),
            ("n_vocab", 128.0),
            ("n_swa", 20.0),
            ("n_pl", 0.0),
        ],
        without_bias: &["mm.input_projection"],
        text_optional: &["attn_v", "layer_output_scale"],
        ..PLAIN
    },
    Family {
        name: "dots_ocr",
        encoder: "dots_ocr",
        text: "qwen2",
        without_bias: &[
            "attn_q", "attn_k", "attn_v", "attn_out", "ffn_gate", "ffn_up", "ffn_down",
        ],
        text_biases: &["attn_q", "attn_k", "attn_v"],
        ..PLAIN
    },
    // The last layer has no rotary positions.
    Family {
        name: "llama4",
        encoder: "llama4",
        text: "llama4",
        image: [48, 48],
        sizes: &[
            ("n_embd", 64.0),
            ("n_head", 4.0),
            ("n_head_kv", 2.0),
            ("n_layer", 4.0),
            ("n_ff", 96.0),
            ("n_vocab", 128.0),
            ("n_expert", 2.0),
            ("n_expert_used", 1.0),
            ("n_ff_exp", 96.0),
            ("moe_step", 8.0),
        ],
        without_bias: &["v.patch_embd", "mm.model.mlp.1", "mm.model.mlp.2", "mm.model.fc"],
        ..PLAIN
    },
    Family {
        name: "exaone4_5",
        encoder: "exaone4_5",
        text: "exaone4",
        without_bias: &["v.patch_embd"],
        ..PLAIN
    },
    // Four patches are merged after the second of three layers.
    Family {
        name: "minicpmv4_6",
        encoder: "minicpmv4_6",
        text: "qwen35",
        sizes: QWEN35,
        text_optional: &["attn_qkv"],
        ..PLAIN
    },
    // All images have 8 rows.
    Family {
        name: "resampler",
        encoder: "resampler",
        text: "qwen2",
        image: [72, 56],
        sizes: &[
            ("n_embd", 256.0),
            ("n_head", 4.0),
            ("n_head_kv", 2.0),
            ("n_layer", 2.0),
            ("n_ff", 96.0),
            ("n_vocab", 128.0),
        ],
        without_bias: &["resampler.kv", "resampler.proj"],
        text_biases: &["attn_q", "attn_k", "attn_v"],
        ..PLAIN
    },
    // Five projectors read three layers. All layers of the language model add features.
    Family {
        name: "granite4_vision",
        encoder: "granite4_vision",
        text: "granite",
        image: [48, 48],
        sizes: &[
            ("n_embd", 64.0),
            ("n_head", 4.0),
            ("n_head_kv", 2.0),
            ("n_layer", 5.0),
            ("n_ff", 96.0),
            ("n_vocab", 128.0),
            ("embedding_factor", 3.0),
        ],
        ..PLAIN
    },
    // An odd number of patches along a side.
    Family {
        name: "ldp",
        encoder: "ldp",
        text: "llama",
        image: [56, 56],
        without_bias: &[
            "v.patch_embd",
            "mm.model.mb_block.1.block.2.0",
            "mm.model.mb_block.2.block.2.0",
        ],
        ..PLAIN
    },
    Family {
        name: "ldpv2",
        encoder: "ldpv2",
        text: "llama",
        image: [48, 48],
        without_bias: &["v.patch_embd"],
        ..PLAIN
    },
    // All four axes of XD-RoPE have a section, and the context is extended.
    Family {
        name: "hunyuanvl",
        encoder: "hunyuanvl",
        text: "hunyuan_vl",
        sizes: &[
            ("n_embd", 64.0),
            ("n_head", 4.0),
            ("n_head_kv", 2.0),
            ("n_layer", 2.0),
            ("n_ff", 96.0),
            ("n_vocab", 128.0),
            ("alpha", 50.0),
            ("rms_norm_eps", 1e-5),
        ],
        ..PLAIN
    },
    Family {
        name: "nemotron_v2_vl",
        encoder: "nemotron_v2_vl",
        text: "nemotron_h",
        image: [48, 48],
        sizes: &[
            ("n_embd", 64.0),
            ("n_head", 4.0),
            ("n_head_kv", 0.0),
            ("n_layer", 2.0),
            ("n_ff", 0.0),
            ("n_vocab", 128.0),
            ("d_conv", 4.0),
            ("d_inner", 128.0),
            ("d_state", 16.0),
            ("n_ssm", 4.0),
            ("n_group", 2.0),
        ],
        without_bias: &["v.patch_embd", "mm.model.mlp.1", "mm.model.mlp.3"],
        ..PLAIN
    },
    // The layers have no, four, and one expert.
    Family {
        name: "dots3note_v",
        encoder: "dots3note_v",
        text: "qwen2",
        without_bias: &[
            "attn_q",
            "attn_k",
            "attn_v",
            "attn_out",
            "ffn_gate",
            "ffn_up",
            "ffn_down",
            "ffn_gate_inp",
            "ffn_gate_exps",
            "ffn_up_exps",
            "ffn_down_exps",
        ],
        text_biases: &["attn_q", "attn_k", "attn_v"],
        ..PLAIN
    },
    // The image is larger than the table of positions of CLIP, and its side is not a multiple of a window.
    Family {
        name: "deepseekocr",
        encoder: "deepseekocr",
        text: "deepseek2-ocr",
        image: [64, 64],
        sizes: WITHOUT_EXPERTS,
        without_bias: &["v.sam.neck.0", "v.sam.neck.2", "v.sam.net_2", "v.sam.net_3"],
        ..PLAIN
    },
    Family {
        name: "janus_pro",
        encoder: "janus_pro",
        text: "llama",
        image: [48, 48],
        ..PLAIN
    },
    // Two heads of queries share keys and values.
    Family {
        name: "deepseekocr2",
        encoder: "deepseekocr2",
        text: "deepseek2-ocr",
        image: [64, 64],
        sizes: WITHOUT_EXPERTS,
        without_bias: &[
            "v.sam.neck.0",
            "v.sam.neck.2",
            "v.sam.net_2",
            "v.sam.net_3",
            "attn_out",
            "ffn_gate",
            "ffn_up",
            "ffn_down",
        ],
        ..PLAIN
    },
    Family {
        name: "phi4",
        encoder: "phi4",
        text: "phi3",
        image: [56, 40],
        ..PLAIN
    },
    Family {
        name: "step3vl",
        encoder: "step3vl",
        text: "qwen3",
        image: [64, 64],
        without_bias: &["v.patch_embd", "mm.model.fc"],
        ..PLAIN
    },
    // The image is not a square, nor are its sides multiples of a window.
    Family {
        name: "muse-glimmer",
        encoder: "muse-glimmer",
        text: "llama",
        without_bias: &["v.patch_embd", "mm.0", "mm.1", "mm.2"],
        ..PLAIN
    },
    Family {
        name: "glm5v",
        encoder: "glm5v",
        text: "llama",
        without_bias: &["mm.model.fc", "mm.gate", "mm.up", "mm.down"],
        ..PLAIN
    },
    // Two values of each head are not rotated.
    Family {
        name: "minimax_m3",
        encoder: "minimax_m3",
        text: "llama",
        without_bias: &["v.patch_embd"],
        ..PLAIN
    },
    Family {
        name: "ling3vl",
        encoder: "ling3vl",
        text: "qwen35",
        sizes: QWEN35,
        text_optional: &["attn_qkv"],
        ..PLAIN
    },
    // Patches attend to all other patches in one of three layers.
    Family {
        name: "youtuvl",
        encoder: "youtuvl",
        text: "llama",
        ..PLAIN
    },
    // The layers have all three orders of patches, and two consecutive layers have the order by columns.
    Family {
        name: "mimovl",
        encoder: "mimovl",
        text: "llama",
        without_bias: &["v.patch_embd", "v.post_ln", "mm.0", "mm.2"],
        ..PLAIN
    },
    // Every kind of block. Rows of media have the per-layer embeddings of token 0.
    Family {
        name: "gemma3nv",
        encoder: "gemma3nv",
        text: "gemma3n",
        image: [192, 192],
        sizes: &[
            ("n_embd", 64.0),
            ("n_head", 2.0),
            ("n_head_kv", 1.0),
            ("head_dim", 32.0),
            ("head_dim_v", 32.0),
            ("n_layer", 22.0),
            ("n_ff", 96.0),
            ("n_vocab", 128.0),
            ("n_swa", 20.0),
        ],
        without_bias: &[
            "conv_exp",
            "conv_pwl",
            "pw_exp.conv",
            "pw_proj.conv",
            "attn.query.proj",
            "attn.key.proj",
            "attn.value.proj",
            "attn.output.proj",
            "v.msfa.ffn.pw_exp.conv",
            "v.msfa.ffn.pw_proj.conv",
            "mm.input_projection",
        ],
        ..PLAIN
    },
];

/// Layer that each projector of Granite Vision reads, and the patch of each block that it samples (-1 for the mean).
const FEATURE_LAYERS: [i32; 5] = [2, 1, 0, 1, 1];
const SPATIAL_OFFSETS: [i32; 5] = [-1, 0, -1, 1, 2];

/// Features that each layer of the language model of Granite Vision adds.
const DEEPSTACK: [i32; 5] = [-1, 1, 2, 3, 4];

impl Family {
    /// Returns the family with this name.
    pub(crate) fn named(name: &str) -> &'static Family {
        FAMILIES.iter().find(|family| family.name == name).unwrap()
    }

    /// Inserts the keys with lists into the file of the encoder or of the language model.
    pub(crate) fn insert_lists(&self, draft: &mut Draft) {
        // The width of experts follows from their matrices, as in published files.
        draft.metadata.remove("clip.vision.expert_feed_forward_length");
        if draft.arch() == "minicpmv4_6" {
            draft.metadata.insert("clip.vision.wa_layer_indexes", vec![1u32]);
        }
        let lists: &[(&str, &[i32])] = match draft.arch() {
            "granite4_vision" => &[
                ("clip.vision.feature_layer", &FEATURE_LAYERS),
                ("clip.vision.projector.spatial_offsets", &SPATIAL_OFFSETS),
            ],
            "granite" => &[("granite.deepstack_mapping", &DEEPSTACK)],
            "hunyuan_vl" => &[("hunyuan_vl.rope.dimension_sections", &[3, 1, 2, 2])],
            "dots3note_v" => &[("clip.vision.expert_count_per_layer", &[0, 4, 1])],
            "youtuvl" => &[("clip.vision.wa_layer_indexes", &[1])],
            "mimovl" => &[("clip.vision.wa_pattern_mode", &[-1, 0, 1, 1, 0])],
            _ => &[],
        };
        for &(key, list) in lists {
            draft.metadata.insert(key, list.to_vec());
        }
    }
}

/// Encoder with biases over images of any size, and a language model with the graph of Llama.
const PLAIN: Family = Family {
    name: "",
    encoder: "",
    encoder_sizes: &[],
    text: "",
    image: [112, 80],
    sizes: LLAMA,
    without_bias: &[],
    text_optional: &[],
    text_biases: &[],
    has_bounds: false,
};

/// Matrices of an encoder whose published model has no biases.
const WITHOUT_BIAS: &[&str] = &[
    "v.patch_embd",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_out",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
    "mm.input_projection",
    "mm.patch_merger",
    "mm.1",
    "mm.2",
];

/// Sizes of a language model with the graph of Llama.
const LLAMA: Sizes = &[
    ("n_embd", 64.0),
    ("n_head", 4.0),
    ("n_head_kv", 2.0),
    ("n_layer", 2.0),
    ("n_ff", 96.0),
    ("n_vocab", 128.0),
];

/// Sizes of a language model with gated delta nets and partial rotation.
const QWEN35: Sizes = &[
    ("n_embd", 64.0),
    ("n_head", 4.0),
    ("n_head_kv", 2.0),
    ("head_dim", 32.0),
    ("head_dim_v", 32.0),
    ("n_rot", 16.0),
    ("n_layer", 4.0),
    ("n_ff", 96.0),
    ("n_vocab", 128.0),
    ("interval", 2.0),
    ("d_conv", 4.0),
    ("d_inner", 64.0),
    ("d_state", 32.0),
    ("n_value", 2.0),
    ("n_key", 2.0),
];

/// Sizes of a language model of DeepSeek whose layers have no experts.
const WITHOUT_EXPERTS: Sizes = &[
    ("n_embd", 64.0),
    ("n_head", 4.0),
    ("n_head_kv", 4.0),
    ("n_layer", 2.0),
    ("n_ff", 96.0),
    ("n_vocab", 128.0),
    ("n_dense", 2.0),
    ("n_expert", 2.0),
    ("n_expert_used", 2.0),
    ("n_ff_exp", 96.0),
    ("n_shared", 1.0),
];

/// Sizes of a language model with latent attention and without experts. The published class hardcodes this epsilon.
const LATENT: Sizes = &[
    ("n_embd", 64.0),
    ("n_head", 4.0),
    ("n_head_kv", 1.0),
    ("head_dim", 40.0),
    ("head_dim_v", 32.0),
    ("n_rot", 8.0),
    ("kv_rank", 32.0),
    ("q_rank_of_file", 24.0),
    ("key_length_mla", 24.0),
    ("value_length_mla", 16.0),
    ("n_layer", 2.0),
    ("n_dense", 2.0),
    ("n_ff", 96.0),
    ("n_ff_exp", 96.0),
    ("n_shared", 1.0),
    ("n_expert", 2.0),
    ("n_expert_used", 1.0),
    ("n_vocab", 128.0),
    ("rms_norm_eps", 1e-6),
];
