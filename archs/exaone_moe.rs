//! K-EXAONE: windows and rotation in all but every fourth layer, dense leading layers, then experts selected with a
//! bias beside a shared one; RMS norms on each query and key head.

arch_macros::arch! {
    name: "exaone-moe";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        n_swa: usize = "attention.sliding_window";
        is_swa: pattern = "attention.sliding_window_pattern" or 4;
        rope_base_swa: f32 = "rope.freq_base_swa" or rope_freq_base;
        n_dense: usize = "leading_dense_block_count" or 0;
        n_ff_exp: [usize] = "expert_feed_forward_length";
        n_ff_shexp: [usize] = "expert_shared_feed_forward_length" or n_ff_exp;
        weights_scale: f32 = "expert_weights_scale" or 1.0;
        norm_weights: bool = "expert_weights_norm" or false;
        gating_func: usize = "expert_gating_func";
        check gating_func <= 4, "expert_gating_func is one of 1 to 4";
        n_group: usize = "expert_group_count" or 1;
        n_group_used: usize = "expert_group_used_count" or 1;
    }

    tensors {
        use tied_output;
        rope_freqs?: vector "rope_freqs" [n_rot / 2];

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention;
            q_norm: vector "attn_q_norm" [head_dim];
            k_norm: vector "attn_k_norm" [head_dim];
            if il < n_dense {
                use gated_ffn;
            } else {
                use experts(width = n_ff_exp);
                probs_bias?: raw "exp_probs_b.bias" [n_expert];
                use shared_experts(width = n_ff_shexp);
            }
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm, eps);
            let q = rms_norm(heads(wq(h), n_head), q_norm, eps);
            let k = rms_norm(heads(wk(h), n_head_kv), k_norm, eps);
            let v = heads(wv(h), n_head_kv);
            if is_swa {
                q = rope(q, factors = rope_freqs, base = rope_base_swa);
                k = rope(k, factors = rope_freqs, base = rope_base_swa);
            }
            x += wo(attention(q, k, v, window = standard(n_swa, is_swa)));
            let h = rms_norm(x, ffn_norm, eps);
            if il < n_dense {
                x += ffn(h);
            } else {
                x += routed(h, gating = gating_func, norm_weights = norm_weights, scale = weights_scale,
                            selection_bias = probs_bias, n_groups = n_group, n_groups_used = n_group_used) + shared(h);
            }
        }
        output(rms_norm(x, output_norm, eps))
    }

    test {
        n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, n_ff_exp: 384,
        gating_func: 2, n_swa: 32
    }
}
