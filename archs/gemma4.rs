//! Gemma 4: Gemma 3 with another head size in sliding-window layers, and proportional rotary frequencies in full
//! layers. Tokens have embeddings per layer, the last layers share keys and values, and experts run in parallel with
//! the feed-forward network.

arch_macros::arch! {
    name: "gemma4";
    rope: neox;

    hparams {
        head_dim_swa: usize = "attention.key_length_swa";
        head_dim_v_swa: usize = "attention.value_length_swa";
        swa_pattern: [bool] = "attention.sliding_window_pattern";
        n_rot_swa: usize = "rope.dimension_count_swa" or n_rot;
        n_pl: usize = "embedding_length_per_layer_input";
        n_ff_exp: [usize] = "expert_feed_forward_length" or 0;
        let d = if is_swa { head_dim_swa } else { head_dim };
        let n_full = count(!swa_pattern);
        check head_dim == head_dim_v && head_dim_swa == head_dim_v_swa,
              "attention.key_length must equal attention.value_length, and attention.key_length_swa must equal attention.value_length_swa";
    }

    tensors {
        use tied_output, logit_softcap(cap = 30.0);
        if n_full > 0 {
            rope_freqs: vector [head_dim / 2];
        }
        if n_pl > 0 {
            use per_layer_embeddings;
        }

        layer {
            attn_norm: vector [n_embd];
            attn_post_norm, ffn_post_norm: vector "post_attention_norm", "post_ffw_norm" [n_embd];
            use shared_kv_attention(head_dim_k = d, head_dim_v = d), parallel_experts;
            override wv?: linear "attn_v" [n_embd -> n_head_kv * d];
            out_scale?: vector "layer_output_scale" [1];
            if n_pl > 0 {
                use per_layer_input;
            }
        }
    }

    fn rotate(x) {
        if n_full > 0 && !is_swa {
            rope(x, factors = rope_freqs, dims = n_rot)
        } else {
            rope(x, base = rope_base_swa, scale = 1.0, dims = n_rot_swa)
        }
    }

    // Without a value projection, the keys before their norm are the values.
    fn value(x, key) {
        if has(wv) { wv(x) } else { key }
    }

    graph {
        let x = with_media(token_embd[tokens] * sqrt(n_embd));
        let per_layer = if n_pl > 0 { per_layer_embeddings(x) };
        for layer {
            let h = rms_norm(x, attn_norm);
            // Models with per-layer embeddings (E2B, E4B) are causal within images.
            let attn = if is_swa && n_pl == 0 { attend(h, media = whole) } else { attend(h) };
            x += rms_norm(attn, attn_post_norm);
            x += rms_norm(ffn_and_experts(x), ffn_post_norm);
            if n_pl > 0 {
                x += per_layer_input(x, per_layer);
            }
            if has(out_scale) {
                x *= out_scale;
            }
        }
        cap_logits(output(rms_norm(x, output_norm)))
    }

    checkpoint "Gemma4ForCausalLM", "Gemma4ForConditionalGeneration" {
        // Configurations have one size for all full layers, or settings of each layer.
        head_dim = "global_head_dim" or "per_layer_config.4.head_dim" or "per_layer_config.5.head_dim" or 512;
        head_dim_v = head_dim;
        head_dim_swa = "head_dim" or 256;
        head_dim_v_swa = "head_dim" or 256;
        n_rot = head_dim;
        n_rot_swa = "head_dim" or 256;
        n_head_kv = if "layer_types" == text("sliding_attention") {
            "num_key_value_heads"
        } else if first("attention_k_eq_v", false) {
            first("num_global_key_value_heads", "per_layer_config.4.num_key_value_heads", "per_layer_config.5.num_key_value_heads",
                  "num_key_value_heads")
        } else {
            "num_key_value_heads"
        };
        n_sharing = "num_kv_shared_layers" or 0;
        n_ff = if first("use_double_wide_mlp", false) && il >= n_layer - first("num_kv_shared_layers", 0) {
            2 * "intermediate_size"
        } else {
            "intermediate_size"
        };
        n_expert = if first("enable_moe_block", false) { "num_experts" } else { 0 };
        n_expert_used = if first("enable_moe_block", false) { "top_k_experts" } else { 0 };
        n_ff_exp = "moe_intermediate_size";
        n_pl = "hidden_size_per_layer_input" or 0;
        n_swa = "sliding_window" or 512;
        swa_pattern = "layer_types" == text("sliding_attention");
        rope_freq_base = "rope_parameters.full_attention.rope_theta" or 1000000.0;
        rope_base_swa = "rope_parameters.sliding_attention.rope_theta" or 10000.0;
        logit_cap = "final_logit_softcapping" or 0.0;
        check first("hidden_activation", text("gelu_pytorch_tanh")) == text("gelu_pytorch_tanh"),
              "hidden_activation must be gelu_pytorch_tanh";
        check first("attention_bias", false) == false, "attention_bias is not supported";
        check first("use_bidirectional_attention", text("vision")) == text("vision"), "bidirectional attention of text is not supported";
        ignore "vision_tower.", "audio_tower.", "embed_vision.", "embed_audio.";
        pl_embd <- "model.embed_tokens_per_layer";
        pl_proj <- "model.per_layer_model_projection";
        pl_norm <- "model.per_layer_projection_norm";
        layer {
            without rope_freqs "the factors follow from the rotary scaling of the configuration";
            without gate_exps, up_exps "the class has fused projections";
            attn_norm <- ".input_layernorm";
            attn_post_norm <- ".post_attention_layernorm";
            q_norm <- ".self_attn.q_norm";
            k_norm <- ".self_attn.k_norm";
            wq <- ".self_attn.q_proj";
            wk <- ".self_attn.k_proj";
            wv <- ".self_attn.v_proj";
            wo <- ".self_attn.o_proj";
            ffn_norm <- ".pre_feedforward_layernorm";
            ffn_post_norm <- ".post_feedforward_layernorm";
            router_scale <- ".router.scale";
            router <- ".router.proj";
            gate_up_exps <- ".experts.gate_up_proj";
            down_exps <- ".experts.down_proj";
            down_exps.scale <- ".router.per_expert_scale";
            mlp_post_norm <- ".post_feedforward_layernorm_1";
            exps_norm <- ".pre_feedforward_layernorm_2";
            exps_post_norm <- ".post_feedforward_layernorm_2";
            out_scale <- ".layer_scalar";
            pl_gate <- ".per_layer_input_gate";
            pl_out <- ".per_layer_projection";
            pl_post_norm <- ".post_per_layer_input_norm";
        }
    }

    test { n_embd: 128, n_head: 2, n_layer: 5, n_ff: 192, n_vocab: 128, n_swa: 32, n_pl: 64, head_dim_swa: 64, head_dim_v_swa: 64 }
}
