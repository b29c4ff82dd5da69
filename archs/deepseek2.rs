//! DeepSeek V2, V3, and R1, Kimi K2, GLM 4.7 Flash, GigaChat, and Kanana 2: multi-head latent attention, and
//! fine-grained experts plus shared experts. The attention caches one compressed vector per token. Old files with a
//! fused key and value projection cache the keys and values of all heads.

arch_macros::arch! {
    name: "deepseek2";
    rope: norm;

    models {
        // DeepSeek V2 Lite, GigaChat 3 10B, and Kanana 2 30B.
        "Lite": n_layer == 27 || n_layer == 26 || (n_layer == 48 && n_vocab == 128256);
        "GLM 4.7 Flash": (n_layer == 47 || n_layer == 48) && n_vocab == 154880;
    }

    hparams {
        n_dense: usize = "leading_dense_block_count" or 0;
        n_ff_exp: [usize] = "expert_feed_forward_length";
        n_shared: usize = "expert_shared_count";
        q_rank_of_file: usize = "attention.q_lora_rank" or 0;
        // The Lite models have a single query projection, although their files may contain a rank.
        let q_rank = if model_is("Lite") { 0 } else { q_rank_of_file };
        temperature: f32 = "attention.temperature_scale" or 0.0;
        temperature_length: usize = "attention.temperature_length" or 0;
        check temperature == 0.0 || temperature_length > 0, "attention.temperature_scale requires attention.temperature_length > 0";
        attn_factor: f32 = "rope.scaling.attn_factor" or 1.0;
        // YaRN's attention factors: one for the rotated dimensions, where DeepSeek cancels the factor, and
        // one for all scores. The file stores a tenth of the multiplier.
        log_mul: f32 = "rope.scaling.yarn_log_multiplier" or 0.0;
        let sharper = 1.0 + 0.1 * ln(1.0 / rope_freq_scale);
        let magnitude = if rope_yarn && log_mul != 0.0 { attn_factor / sharper } else { attn_factor };
        let mscale = magnitude * sharper * (1.0 + log_mul * ln(1.0 / rope_freq_scale));
        let kq_scale = mscale * mscale / sqrt(mla_head_dim_k);
    }

    tensors {
        use tied_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use latent_attention;
            if il < n_dense {
                use gated_ffn;
            } else {
                router: linear "ffn_gate_inp" [n_embd -> n_expert];
                // Without a key, the gating is softmax, except in this model, which uses sigmoid.
                use expert_routing(default_gating = if model_is("GLM 4.7 Flash") { 2 } else { 1 });
                probs_bias?: raw "exp_probs_b.bias" [n_expert];
                use fused_expert_stacks, shared_experts(width = n_ff_exp * n_shared);
            }
        }
    }

    fn attend(x) { attend_queries(x, latent_queries(x)) }

    fn attend_queries(x, q, ..) {
        if temperature != 0.0 {
            q = q * attention_temperature(temperature, temperature_length, 0.0);
        }
        wo(merge(attend_latent_heads(x, q, magnitude = magnitude, scale = kq_scale, ..)))
    }

    fn ffn_or_experts(h) {
        if il < n_dense {
            ffn(h)
        } else {
            routed_by_keys(h, gate_up = gate_up_exps, selection_bias = probs_bias) + shared_experts(h)
        }
    }

    graph {
        let x = with_media(token_embd[tokens]);
        for layer {
            x += attend(rms_norm(x, attn_norm));
            x += ffn_or_experts(rms_norm(x, ffn_norm));
        }
        output(rms_norm(x, output_norm))
    }

    checkpoint "DeepseekV3ForCausalLM" {
        key_length_mla = "qk_nope_head_dim" + "qk_rope_head_dim";
        value_length_mla = "v_head_dim";
        kv_rank = "kv_lora_rank";
        q_rank_of_file = "q_lora_rank";
        n_rot = "qk_rope_head_dim";
        head_dim = kv_rank + n_rot;
        head_dim_v = kv_rank;
        n_head_kv = 1;
        n_dense = "first_k_dense_replace" or 3;
        n_ff_exp = "moe_intermediate_size";
        n_shared = "n_shared_experts";
        gating_func = if first("scoring_func", text("sigmoid")) == text("softmax") { 1 } else { 2 };
        norm_weights = "norm_topk_prob" or true;
        weights_scale = "routed_scaling_factor" or 2.5;
        n_group = "n_group" or 8;
        n_group_used = "topk_group" or 4;
        log_mul = 0.1 * first("rope_parameters.mscale_all_dim", "rope_scaling.mscale_all_dim");
        check first("rope_interleave", true) == true, "rope_interleave must be true for this architecture";
        attn_norm <- ".input_layernorm";
        ffn_norm <- ".post_attention_layernorm";
        router <- ".mlp.gate";
        probs_bias <- ".mlp.gate.e_score_correction_bias";
    }

    checkpoint "DeepseekV2ForCausalLM" like "DeepseekV3ForCausalLM" {
        n_dense = "first_k_dense_replace" or 0;
        gating_func = if first("scoring_func", text("softmax")) == text("sigmoid") { 2 } else { 1 };
        // The class ignores `norm_topk_prob`.
        norm_weights = false;
        weights_scale = "routed_scaling_factor" or 1.0;
        n_group = 1;
        n_group_used = 1;
        check first("topk_method", text("greedy")) == text("greedy"),
              "topk_method must be greedy: groups of softmax experts are not supported";
    }

    test {
        n_embd: 128, n_head: 1, n_layer: 2, n_ff: 192, n_vocab: 128, n_dense: 1, n_ff_exp: 192, kv_rank: 512, q_rank_of_file: 512,
        key_length_mla: 192, value_length_mla: 128, n_expert: 2, n_expert_used: 2, n_shared: 1
    }
}
