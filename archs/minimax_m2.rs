//! MiniMax M2: RMS norms over all query and all key heads together, partial rotation, experts selected with a bias.

arch_macros::arch! {
    name: "minimax-m2";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        gating_func: usize = "expert_gating_func" or 1;
        check gating_func <= 4, "expert_gating_func is one of 1 to 4";
    }

    tensors {
        token_embd:  embed  "token_embd"  [n_embd, n_vocab];
        output_norm: vector "output_norm" [n_embd];
        output:      linear "output"      [n_embd -> n_vocab];

        layer {
            attn_norm:  vector  "attn_norm"        [n_embd];
            wq:         linear  "attn_q"           [n_embd -> n_head * head_dim];
            wk:         linear  "attn_k"           [n_embd -> n_head_kv * head_dim];
            wv:         linear  "attn_v"           [n_embd -> n_head_kv * head_dim_v];
            q_norm:     vector  "attn_q_norm"      [n_head * head_dim];
            k_norm:     vector  "attn_k_norm"      [n_head_kv * head_dim];
            wo:         linear  "attn_output"      [n_head * head_dim_v -> n_embd];
            ffn_norm:   vector  "ffn_norm"         [n_embd];
            router:     linear  "ffn_gate_inp"     [n_embd -> n_expert];
            probs_bias: raw     "exp_probs_b.bias" [n_expert];
            gate_exps:  experts "ffn_gate_exps"    [n_embd -> n_ff; n_expert];
            up_exps:    experts "ffn_up_exps"      [n_embd -> n_ff; n_expert];
            down_exps:  experts "ffn_down_exps"    [n_ff -> n_embd; n_expert];
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm, eps);
            let q = rope(heads(rms_norm(wq(h), q_norm, eps), n_head));
            let k = rope(heads(rms_norm(wk(h), k_norm, eps), n_head_kv));
            let v = heads(wv(h), n_head_kv);
            x += wo(attention(q, k, v));
            let h = rms_norm(x, ffn_norm, eps);
            x += moe(h, router = router(h), gate = gate_exps, up = up_exps, down = down_exps, act = silu,
                     gating = gating_func, n_used = n_expert_used, norm_weights = true, selection_bias = probs_bias);
        }
        output(rms_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2 }
}
