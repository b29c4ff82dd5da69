//! Step 3.5: sliding-window layers rotate whole heads, full layers half of each head. A gate per attention
//! head, clamped gate and up projections, and experts plus a shared expert. The tensors present in a file
//! determine which layers are dense.

arch_macros::arch! {
    name: "step35";
    rope: neox;

    hparams {
        n_rot_swa: usize = "rope.dimension_count_swa" or n_rot;
        check n_rot % 4 == 0, "rope.dimension_count must be a multiple of 4 (full layers rotate half of it)";
        check n_rot_swa % 2 == 0 && n_rot_swa <= head_dim, "rope.dimension_count_swa must be even and at most attention.key_length";
        n_ff_exp: [usize] = "expert_feed_forward_length";
        n_ff_shexp: [usize] = "expert_shared_feed_forward_length" or 0;
    }

    tensors {
        use untied_output, sliding_window(kind = [bool], base = 10000.0);
        rope_freqs?: vector "rope_freqs" [n_rot_swa / 2]; // sized for the layers with the most rotated dimensions

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use optional_qk_norm_attention, activation_limits;
            head_gate?: linear "attn_gate"    [n_embd -> n_head];
            router?:    linear "ffn_gate_inp" [n_embd -> n_expert];
            if has(router) {
                use expert_stacks(width = n_ff_exp), expert_routing(default_gating = 2), shared_experts(width = n_ff_shexp);
                probs_bias?: raw "exp_probs_b.bias" [n_expert];
                ignore "ffn_gate", "ffn_up", "ffn_down";
            } else {
                use gated_ffn;
            }
        }
    }

    graph {
        let x = with_media(token_embd[tokens]);
        for layer {
            let h = rms_norm(x, attn_norm);
            let attn = attend_heads(h, base = rope_base, rope_scale = rope_scale, dims = if is_swa { n_rot_swa } else { n_rot / 2 },
                                    factors = if !is_swa { rope_freqs }, window = sliding(n_swa, is_swa));
            if has(head_gate) {
                attn = merge(heads(attn, n_head) * heads(sigmoid(head_gate(h)), n_head));
            }
            x += wo(attn);
            let h = rms_norm(x, ffn_norm);
            if has(router) {
                x += routed_by_keys(h, selection_bias = probs_bias, act_limit = limit)
                    + down_shexp(limited_glu(gate_shexp(h), up_shexp(h)));
            } else {
                x += down(limited_glu(gate(h), up(h)));
            }
        }
        output(rms_norm(x, output_norm))
    }

    test {
        n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, n_ff_exp: 384,
        n_ff_shexp: 192, n_swa: 32
    }
}
