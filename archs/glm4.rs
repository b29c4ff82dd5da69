//! GLM-4 (0414): ChatGLM with norms after attention and the feed-forward network in addition to the norms
//! before them. Files of the vision model have multi-axis positions.

arch_macros::arch! {
    name: "glm4";
    like: "decoder";
    rope: norm or mrope;

    tensors {
        layer {
            without gate;
            use fused_gated_ffn;
            attn_post, ffn_post: vector "post_attention_norm", "post_ffw_norm" [n_embd];
        }
    }

    graph {
        let x = with_media(token_embd[tokens]);
        for layer {
            x += rms_norm(attend(rms_norm(x, attn_norm)), attn_post);
            x += rms_norm(ffn(rms_norm(x, ffn_norm)), ffn_post);
        }
        output(rms_norm(x, output_norm))
    }

    checkpoint "Glm4ForCausalLM" {
        n_rot = int(head_dim * first("rope_parameters.partial_rotary_factor", "partial_rotary_factor", 0.5));
        attn_norm <- ".input_layernorm";
        attn_post <- ".post_self_attn_layernorm";
        ffn_norm <- ".post_attention_layernorm";
        ffn_post <- ".post_mlp_layernorm";
    }
}
