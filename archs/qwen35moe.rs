//! Qwen3.5 with experts: Qwen3-Next with interleaved multi-axis rotary positions, and value heads assigned to
//! key heads round-robin.

arch_macros::arch! {
    name: "qwen35moe";
    like: "qwen3next";
    rope: imrope;

    hparams {
        let by_key = false;
    }

    fn embeddings() { with_media(token_embd[tokens]) }

    checkpoint "Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration" like "Qwen3NextForCausalLM" {
        rope_freq_base = "rope_parameters.rope_theta" or "rope_theta" or 10000000.0;
        ignore "visual.";
        layer {
            // Files group value heads by key head; here, consecutive value heads use consecutive key heads.
            without wqkvz, beta_alpha "the class has projections of each input";
            wqkv <- ".linear_attn.in_proj_qkv" rows 0..2 * n_key * d_state and
                ".linear_attn.in_proj_qkv" rows 2 * n_key * d_state..2 * n_key * d_state + d_inner heads n_value tile n_key merge;
            wz <- ".linear_attn.in_proj_z" heads n_value tile n_key merge;
            conv <- ".linear_attn.conv1d" squeeze rows 0..2 * n_key * d_state and
                ".linear_attn.conv1d" squeeze rows 2 * n_key * d_state..2 * n_key * d_state + d_inner heads n_value tile n_key merge;
            dt_bias <- ".linear_attn.dt_bias" tile n_key;
            a <- ".linear_attn.A_log" exp neg tile n_key;
            beta <- ".linear_attn.in_proj_b" tile n_key;
            alpha <- ".linear_attn.in_proj_a" tile n_key;
            ssm_out <- ".linear_attn.out_proj" transpose heads n_value tile n_key merge transpose;
        }
    }
}
