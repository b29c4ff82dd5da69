//! AFMoE (Trinity): scaled embeddings, windows and rotation in all but every fourth layer, gated attention, sandwich
//! norms, dense leading layers, then experts selected with a bias beside shared ones.

arch_macros::arch! {
    name: "afmoe";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        n_swa: usize = "attention.sliding_window" or 0;
        is_swa: pattern = "attention.sliding_window_pattern" or 4;
        rope_base_swa: f32 = "rope.freq_base_swa" or rope_freq_base;
        let windowed = n_swa > 0 && is_swa;
        let rope_base = if windowed { rope_base_swa } else { rope_freq_base };
    }

    tensors {
        use tied_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention;
            q_norm, k_norm: vector "attn_q_norm", "attn_k_norm" [head_dim];
            attn_gate: linear [n_embd -> n_head * head_dim_v];
            attn_post_norm, ffn_post_norm: vector "post_attention_norm", "post_ffw_norm" [n_embd];
            use leading_dense(usual_gating = 2);
        }
    }

    graph {
        let x = token_embd[tokens] * sqrt(n_embd);
        for layer {
            let h = rms_norm(x, attn_norm, eps);
            let q = rms_norm(heads(wq(h), n_head), q_norm, eps);
            let k = rms_norm(heads(wk(h), n_head_kv), k_norm, eps);
            let v = heads(wv(h), n_head_kv);
            // Every fourth layer goes without rotation, whatever its window.
            if (il + 1) % 4 != 0 {
                q = rope(q, base = rope_base);
                k = rope(k, base = rope_base);
            }
            let attn = attention(q, k, v, window = standard(n_swa, windowed));
            x += rms_norm(wo(attn * sigmoid(attn_gate(h))), attn_post_norm, eps);
            x += rms_norm(ffn_or_experts(rms_norm(x, ffn_norm, eps)), ffn_post_norm, eps);
        }
        output(rms_norm(x, output_norm, eps))
    }

    test {
        n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, n_ff_exp: 384,
        n_shared: 1
    }
}
