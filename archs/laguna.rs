//! Laguna: softplus gates per attention head or per element. Sliding-window layers with unscaled rotary
//! positions, full layers with YaRN. Dense leading layers, then experts selected with a bias, plus a shared
//! expert.

arch_macros::arch! {
    name: "laguna";
    rope: neox;

    hparams {
        n_rot_swa: usize = "rope.dimension_count_swa" or n_rot;
        check n_rot_swa % 2 == 0 && n_rot_swa <= head_dim, "rope.dimension_count_swa must be even and at most attention.key_length";
        n_dense: usize = "leading_dense_block_count";
        n_ff_exp: [usize] = "expert_feed_forward_length";
        n_shared: usize = "expert_shared_count" or 1;
        n_ff_shared: [usize] = "expert_shared_feed_forward_length" or 0;
        let n_ff_shexp = if n_ff_shared == 0 { n_ff_exp * n_shared } else { n_ff_shared };
    }

    tensors {
        use tied_output, sliding_window(length = 0, period = 4, kind = dense_first);

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use qk_norm_attention;
            head_gate?: linear "attn_gate" [n_embd -> n_head];
            if !has(head_gate) {
                full_gate: linear "attn_gate" [n_embd -> n_head * head_dim_v];
            }
            if il < n_dense {
                use gated_ffn;
            } else {
                use selected_experts(default_gating = 2), shared_experts(width = n_ff_shexp);
            }
        }
    }

    fn gated(y, h) {
        let y = heads(y, n_head);
        if has(head_gate) {
            merge(y * heads(softplus(head_gate(h)), n_head))
        } else {
            merge(y * heads(softplus(full_gate(h)), n_head))
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm);
            let attn = attend_heads(h, base = rope_base, rope_scale = rope_scale, dims = if is_swa { n_rot_swa },
                                    magnitude = if is_swa { 1.0 }, yarn = !is_swa, window = sliding(n_swa, is_swa));
            x += wo(gated(attn, h));
            let h = rms_norm(x, ffn_norm);
            x += if il < n_dense { ffn(h) } else { selected_experts(h) + shared_experts(h) };
        }
        output(rms_norm(x, output_norm))
    }

    test {
        n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, n_ff_exp: 384,
        n_dense: 1
    }
}
