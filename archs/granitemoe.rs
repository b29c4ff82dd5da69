//! Granite 3 and 4 with experts: factors on embeddings, attention, residual branches and logits, and in some a shared
//! expert.

arch_macros::arch! {
    name: "granitemoe";
    rope: norm;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        logit_scale: f32 = "logit_scale";
        check logit_scale != 0.0, "logit_scale, by which logits are divided, is not 0";
        embedding_factor: f32 = "embedding_scale" or 0.0;
        residual_factor: f32 = "residual_scale" or 0.0;
        attention_factor: f32 = "attention.scale" or 0.0;
        n_ff_shexp: usize = "expert_shared_feed_forward_length" or 0;
        // A factor of 0 says that there is none.
        let embedding_scale = if embedding_factor == 0.0 { 1.0 } else { embedding_factor };
        let residual_scale = if residual_factor == 0.0 { 1.0 } else { residual_factor };
        let kq_scale = if attention_factor == 0.0 { 1.0 / sqrt(head_dim) } else { attention_factor };
        let has_shared = n_expert > 0 && n_ff_shexp > 0;
    }

    tensors {
        use tied_output;
        rope_freqs?: vector "rope_freqs" [n_rot / 2];

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention;
            if n_expert == 0 {
                use gated_ffn;
            } else {
                router:     linear  "ffn_gate_inp"  [n_embd -> n_expert];
                gate_exps?: experts "ffn_gate_exps" [n_embd -> n_ff; n_expert];
                up_exps:    experts "ffn_up_exps"   [n_embd -> n_ff; n_expert];
                down_exps:  experts "ffn_down_exps" [n_ff -> n_embd; n_expert];
            }
            if has_shared {
                use shared_experts(width = n_ff_shexp);
            }
        }
    }

    graph {
        let x = token_embd[tokens] * embedding_scale;
        for layer {
            x += attend(rms_norm(x, attn_norm, eps), factors = rope_freqs, scale = kq_scale) * residual_scale;
            let h = rms_norm(x, ffn_norm, eps);
            if n_expert == 0 {
                x += ffn(h) * residual_scale;
            } else {
                let ffn = moe(h, router = router(h), gate = gate_exps, up = up_exps, down = down_exps, act = silu,
                              gating = softmax, n_used = n_expert_used, norm_weights = true);
                if has_shared {
                    ffn += shared(h);
                }
                x += ffn * residual_scale;
            }
        }
        output(rms_norm(x, output_norm, eps)) / logit_scale
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
