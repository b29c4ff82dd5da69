//! dots.llm1: dense leading layers, then experts selected with a bias beside shared ones; RMS norms on each query and
//! key head.

arch_macros::arch! {
    name: "dots1";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        n_dense: usize = "leading_dense_block_count" or 0;
        n_ff_exp: [usize] = "expert_feed_forward_length";
        n_shared: usize = "expert_shared_count";
        weights_scale: f32 = "expert_weights_scale" or 1.0;
        norm_weights: bool = "expert_weights_norm" or false;
        gating_func: usize = "expert_gating_func" or 1;
        check gating_func <= 4, "expert_gating_func is one of 1 to 4";
        n_group: usize = "expert_group_count" or 1;
        n_group_used: usize = "expert_group_used_count" or 1;
    }

    tensors {
        token_embd:  embed  "token_embd"  [n_embd, n_vocab];
        output_norm: vector "output_norm" [n_embd];
        output:      linear "output"      [n_embd -> n_vocab];

        layer {
            attn_norm: vector "attn_norm"   [n_embd];
            wq:        linear "attn_q"      [n_embd -> n_head * head_dim];
            wk:        linear "attn_k"      [n_embd -> n_head_kv * head_dim];
            wv:        linear "attn_v"      [n_embd -> n_head_kv * head_dim_v];
            q_norm:    vector "attn_q_norm" [head_dim];
            k_norm:    vector "attn_k_norm" [head_dim];
            wo:        linear "attn_output" [n_head * head_dim_v -> n_embd];
            ffn_norm:  vector "ffn_norm"    [n_embd];
            if il < n_dense {
                gate: linear "ffn_gate" [n_embd -> n_ff];
                up:   linear "ffn_up"   [n_embd -> n_ff];
                down: linear "ffn_down" [n_ff -> n_embd];
            } else {
                router:      linear  "ffn_gate_inp"     [n_embd -> n_expert];
                probs_bias?: raw     "exp_probs_b.bias" [n_expert];
                gate_exps:   experts "ffn_gate_exps"    [n_embd -> n_ff_exp; n_expert];
                up_exps:     experts "ffn_up_exps"      [n_embd -> n_ff_exp; n_expert];
                down_exps:   experts "ffn_down_exps"    [n_ff_exp -> n_embd; n_expert];
                gate_shexp:  linear  "ffn_gate_shexp"   [n_embd -> n_ff_exp * n_shared];
                up_shexp:    linear  "ffn_up_shexp"     [n_embd -> n_ff_exp * n_shared];
                down_shexp:  linear  "ffn_down_shexp"   [n_ff_exp * n_shared -> n_embd];
            }
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm, eps);
            let q = rope(rms_norm(heads(wq(h), n_head), q_norm, eps));
            let k = rope(rms_norm(heads(wk(h), n_head_kv), k_norm, eps));
            let v = heads(wv(h), n_head_kv);
            x += wo(attention(q, k, v));
            let h = rms_norm(x, ffn_norm, eps);
            if il < n_dense {
                x += down(silu(gate(h)) * up(h));
            } else {
                let routed = moe(h, router = router(h), gate = gate_exps, up = up_exps, down = down_exps, act = silu,
                                 gating = gating_func, n_used = n_expert_used, norm_weights = norm_weights,
                                 scale = weights_scale, selection_bias = probs_bias, n_groups = n_group,
                                 n_groups_used = n_group_used);
                x += routed + down_shexp(silu(gate_shexp(h)) * up_shexp(h));
            }
        }
        output(rms_norm(x, output_norm, eps))
    }

    test {
        n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, n_ff_exp: 384,
        n_shared: 1
    }
}
