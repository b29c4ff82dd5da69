//! Gemma 3: scaled embeddings, sliding-window layers with their own rotary base between full layers, and GELU gates.
//! Norms precede and follow each block, and RMS norms apply per query and key head.

arch_macros::arch! {
    name: "gemma3";
    rope: neox;

    models {
        "27B": n_layer == 62;
        "published": n_layer == 18 || n_layer == 24 || n_layer == 26 || n_layer == 34 || n_layer == 48 || n_layer == 62;
    }

    hparams {
        scale_of_file: f32 = "attention.scale" or 0.0;
        // Most files do not contain the scale. Only the 27B model scales by the width per head instead of the head
        // size.
        let usual_scale = if model_is("27B") { 1.0 / sqrt(1.0 * n_embd / n_head) } else { 1.0 / sqrt(head_dim) };
        let kq_scale = if scale_of_file > 0.0 { scale_of_file } else { usual_scale };
        warn given(scale_of_file) || model_is("published"),
             "attention.scale is missing: scores are scaled by the head size, but models of this depth may have another query_pre_attn_scalar";
    }

    tensors {
        use tied_output, logit_softcap(cap = 0.0), sliding_window(length = 0, period = 6, base = 10000.0);
        ignore "dense_2", "dense_3"; // projections of the embedding models

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use qk_norm_attention, gated_ffn;
            attn_post_norm, ffn_post_norm: vector "post_attention_norm", "post_ffw_norm" [n_embd];
        }
    }

    graph {
        let x = with_media(token_embd[tokens] * sqrt(n_embd));
        for layer {
            let h = rms_norm(x, attn_norm);
            let attn = attend(h, base = rope_base, rope_scale = rope_scale, scale = kq_scale,
                              window = sliding(n_swa, is_swa), media = whole);
            x += rms_norm(attn, attn_post_norm);
            x += rms_norm(ffn(rms_norm(x, ffn_norm), act = gelu), ffn_post_norm);
        }
        cap_logits(output(rms_norm(x, output_norm)))
    }

    checkpoint "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration" {
        n_head = "num_attention_heads" or 8;
        n_head_kv = "num_key_value_heads" or 4;
        head_dim = "head_dim" or 256;
        n_ctx_train = "max_position_embeddings" or 131072;
        rms_norm_eps = "rms_norm_eps" or 0.000001;
        check first("attn_logit_softcapping", 0.0) == 0.0, "attn_logit_softcapping is not supported";
        check first("use_bidirectional_attention", false) == false, "use_bidirectional_attention is not supported";
        scale_of_file = 1.0 / sqrt(first("query_pre_attn_scalar", 256));
        logit_cap = "final_logit_softcapping" or 0.0;
        n_swa = "sliding_window" or 4096;
        swa_pattern = "layer_types" == text("sliding_attention") or "sliding_window_pattern" or 6;
        rope_freq_base = "rope_parameters.full_attention.rope_theta" or "rope_theta" or 1000000.0;
        rope_base_swa = "rope_parameters.sliding_attention.rope_theta" or "rope_local_base_freq" or 10000.0;
        ignore "vision_tower.", "multi_modal_projector.";
        output_norm <- "model.norm" plus 1;
        layer {
            attn_norm <- ".input_layernorm" plus 1;
            attn_post_norm <- ".post_attention_layernorm" plus 1;
            ffn_norm <- ".pre_feedforward_layernorm" plus 1;
            ffn_post_norm <- ".post_feedforward_layernorm" plus 1;
            q_norm <- ".self_attn.q_norm" plus 1;
            k_norm <- ".self_attn.k_norm" plus 1;
        }
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_swa: 32 }
}
