//! Step 3.5: windows with rotations of whole heads, full layers with those of half heads; a gate for each head, limited gates and
//! ups in feed-forward networks, experts beside a shared one; dense layers are told apart by their tensors.

arch_macros::arch! {
    name: "step35";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        n_swa: usize = "attention.sliding_window";
        is_swa: [bool] = "attention.sliding_window_pattern";
        rope_base_swa: f32 = "rope.freq_base_swa" or 10000.0;
        n_rot_swa: usize = "rope.dimension_count_swa" or n_rot;
        check n_rot % 4 == 0, "rope.dimension_count is a multiple of 4, since full layers rotate half of it";
        check n_rot_swa % 2 == 0 && n_rot_swa <= head_dim, "rope.dimension_count_swa is even and at most attention.key_length";
        let rope_base = if is_swa { rope_base_swa } else { rope_freq_base };
        let rope_scale = if is_swa { 1.0 } else { rope_freq_scale };
        let rope_dims = if is_swa { n_rot_swa } else { n_rot / 2 };
        n_ff_exp: [usize] = "expert_feed_forward_length";
        n_ff_shexp: [usize] = "expert_shared_feed_forward_length" or 0;
        limit_exp: [f32] = "swiglu_clamp_exp" or 0.0;
        limit_ffn: [f32] = "swiglu_clamp_shexp" or 0.0;
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
        use own_output;
        rope_freqs?: vector "rope_freqs" [n_rot_swa / 2]; // as many as the layers that rotate most

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention;
            q_norm?, k_norm?: vector "attn_q_norm", "attn_k_norm" [head_dim];
            head_gate?:  linear  "attn_gate"        [n_embd -> n_head];
            router?:     linear  "ffn_gate_inp"     [n_embd -> n_expert];
            probs_bias?: raw     "exp_probs_b.bias" [n_expert];
            gate_exps?:  experts "ffn_gate_exps"    [n_embd -> n_ff_exp; n_expert];
            up_exps?:    experts "ffn_up_exps"      [n_embd -> n_ff_exp; n_expert];
            down_exps?:  experts "ffn_down_exps"    [n_ff_exp -> n_embd; n_expert];
            gate_shexp?: linear  "ffn_gate_shexp"   [n_embd -> n_ff_shexp];
            up_shexp?:   linear  "ffn_up_shexp"     [n_embd -> n_ff_shexp];
            down_shexp?: linear  "ffn_down_shexp"   [n_ff_shexp -> n_embd];
            gate?:       linear  "ffn_gate"         [n_embd -> n_ff];
            up?:         linear  "ffn_up"           [n_embd -> n_ff];
            down?:       linear  "ffn_down"         [n_ff -> n_embd];
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm, eps);
            let q = heads(wq(h), n_head);
            let k = heads(wk(h), n_head_kv);
            let v = heads(wv(h), n_head_kv);
            if has(q_norm) {
                q = rms_norm(q, q_norm, eps);
            }
            if has(k_norm) {
                k = rms_norm(k, k_norm, eps);
            }
            if is_swa {
                q = rope(q, base = rope_base, scale = rope_scale, dims = rope_dims);
                k = rope(k, base = rope_base, scale = rope_scale, dims = rope_dims);
            } else {
                q = rope(q, factors = rope_freqs, dims = rope_dims);
                k = rope(k, factors = rope_freqs, dims = rope_dims);
            }
            let attn = heads(attention(q, k, v, window = standard(n_swa, is_swa)), n_head);
            if has(head_gate) {
                attn = attn * heads(sigmoid(head_gate(h)), n_head);
            }
            x += wo(merge(attn));
            let h = rms_norm(x, ffn_norm, eps);
            if has(router) && has(down_exps) {
                x += moe(h, router = router(h), gate = gate_exps, up = up_exps, down = down_exps, act = silu,
                         gating = gating, n_used = n_expert_used, norm_weights = norm_weights, scale = weights_scale,
                         selection_bias = probs_bias, n_groups = n_group, n_groups_used = n_group_used,
                         act_limit = limit_exp)
                   + rust!([n_embd, T] => b.gated_ffn([l.gate_shexp, l.up_shexp, l.down_shexp], "_shexp", h, m.hp.limit_ffn[il]));
            } else {
                x += rust!([n_embd, T] => b.gated_ffn([l.gate, l.up, l.down], "", h, m.hp.limit_ffn[il]));
            }
        }
        output(rms_norm(x, output_norm, eps))
    }

    test {
        n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, n_ff_exp: 384,
        n_ff_shexp: 192, n_swa: 32
    }
}
