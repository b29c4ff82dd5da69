//! Mellum 2: windows in all but every fourth layer, which alone stretch their rotation; RMS norms on each query and key
//! head, softmax routing with normalized weights.

arch_macros::arch! {
    name: "mellum";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        n_swa: usize = "attention.sliding_window" or 0;
        is_swa: pattern = "attention.sliding_window_pattern" or 4;
        n_ff_exp: [usize] = "expert_feed_forward_length";
        let windowed = n_swa > 0 && is_swa;
    }

    tensors {
        token_embd:  embed  "token_embd"  [n_embd, n_vocab];
        output_norm: vector "output_norm" [n_embd];
        output:      linear "output"      [n_embd -> n_vocab];

        layer {
            attn_norm: vector  "attn_norm"     [n_embd];
            wq:        linear  "attn_q"        [n_embd -> n_head * head_dim];
            wk:        linear  "attn_k"        [n_embd -> n_head_kv * head_dim];
            wv:        linear  "attn_v"        [n_embd -> n_head_kv * head_dim_v];
            q_norm:    vector  "attn_q_norm"   [head_dim];
            k_norm:    vector  "attn_k_norm"   [head_dim];
            wo:        linear  "attn_output"   [n_head * head_dim_v -> n_embd];
            ffn_norm:  vector  "ffn_norm"      [n_embd];
            router:    linear  "ffn_gate_inp"  [n_embd -> n_expert];
            gate_exps: experts "ffn_gate_exps" [n_embd -> n_ff_exp; n_expert];
            up_exps:   experts "ffn_up_exps"   [n_embd -> n_ff_exp; n_expert];
            down_exps: experts "ffn_down_exps" [n_ff_exp -> n_embd; n_expert];
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm, eps);
            let q = rms_norm(heads(wq(h), n_head), q_norm, eps);
            let k = rms_norm(heads(wk(h), n_head_kv), k_norm, eps);
            if windowed {
                q = rope(q, scale = 1.0, magnitude = 1.0, yarn = false);
                k = rope(k, scale = 1.0, magnitude = 1.0, yarn = false);
            } else {
                q = rope(q);
                k = rope(k);
            }
            let v = heads(wv(h), n_head_kv);
            x += wo(attention(q, k, v, window = standard(n_swa, windowed)));
            let h = rms_norm(x, ffn_norm, eps);
            x += moe(h, router = router(h), gate = gate_exps, up = up_exps, down = down_exps, act = silu,
                     gating = softmax, n_used = n_expert_used, norm_weights = true);
        }
        output(rms_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, n_ff_exp: 384 }
}
