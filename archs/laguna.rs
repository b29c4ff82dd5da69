//! Laguna: a softplus gate on each attention head or on each of its elements, windows with plain rotations of their own beside
//! full layers with YaRN, dense leading layers, then experts selected with a bias beside a shared one.

arch_macros::arch! {
    name: "laguna";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        n_swa: usize = "attention.sliding_window" or 0;
        is_swa: late_pattern = "attention.sliding_window_pattern" or 4;
        let windowed = n_swa > 0 && is_swa;
        rope_base_swa: f32 = "rope.freq_base_swa" or rope_freq_base;
        n_rot_swa: usize = "rope.dimension_count_swa" or n_rot;
        check n_rot_swa % 2 == 0 && n_rot_swa <= head_dim, "rope.dimension_count_swa is even and at most attention.key_length";
        n_dense: usize = "leading_dense_block_count";
        n_ff_exp: [usize] = "expert_feed_forward_length";
        n_shared: usize = "expert_shared_count" or 1;
        n_ff_shared: [usize] = "expert_shared_feed_forward_length" or 0;
        let n_ff_shexp = if n_ff_shared == 0 { n_ff_exp * n_shared } else { n_ff_shared };
        weights_scale: f32 = "expert_weights_scale" or 1.0;
        norm_weights: bool = "expert_weights_norm" or false;
        gating_func: usize = "expert_gating_func" or 0;
        check gating_func <= 4, "expert_gating_func is one of 1 to 4";
        // Files without a word on it mean sigmoid, which is 2.
        let gating = if gating_func == 0 { 2 } else { gating_func };
        n_group: usize = "expert_group_count" or 1;
        n_group_used: usize = "expert_group_used_count" or 1;
    }

    tensors {
        use tied_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention;
            q_norm, k_norm: vector "attn_q_norm", "attn_k_norm" [head_dim];
            // The file holds one of the two.
            head_gate?: linear "attn_gate" [n_embd -> n_head];
            full_gate?: linear "attn_gate" [n_embd -> n_head * head_dim];
            if il < n_dense {
                use gated_ffn;
            } else {
                use experts(width = n_ff_exp);
                probs_bias: raw "exp_probs_b.bias" [n_expert];
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
            if windowed {
                q = rope(q, base = rope_base_swa, scale = 1.0, dims = n_rot_swa, magnitude = 1.0, yarn = false);
                k = rope(k, base = rope_base_swa, scale = 1.0, dims = n_rot_swa, magnitude = 1.0, yarn = false);
            } else {
                q = rope(q);
                k = rope(k);
            }
            let attn = attention(q, k, heads(wv(h), n_head_kv), window = standard(n_swa, windowed));
            let attn = heads(attn, n_head);
            if has(head_gate) {
                attn = attn * heads(softplus(head_gate(h)), n_head);
            } else {
                attn = attn * rust!([head_dim_v, n_head, T] => {
                    let gate = b.present(&l.full_gate, "attn_gate");
                    let gate = b.linear(gate, h);
                    let gate = b.unary(::engine::arch::Unary::Softplus, gate);
                    b.heads(gate, m.base.n_head(il))
                });
            }
            x += wo(merge(attn));
            let h = rms_norm(x, ffn_norm, eps);
            if il < n_dense {
                x += ffn(h);
            } else {
                x += routed(h, gating = gating, norm_weights = norm_weights, scale = weights_scale,
                            selection_bias = probs_bias, n_groups = n_group, n_groups_used = n_group_used) + shared(h);
            }
        }
        output(rms_norm(x, output_norm, eps))
    }

    test {
        n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, n_ff_exp: 384,
        n_dense: 1
    }
}
