//! Qwen1.5 and Qwen2 with experts: routed experts whose weights stay unnormalized, and a shared expert behind a gate of
//! its own.

arch_macros::arch! {
    name: "qwen2moe";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        n_ff_exp: [usize] = "expert_feed_forward_length" or n_ff / n_expert_used;
        n_ff_shexp: [usize] = "expert_shared_feed_forward_length" or n_ff;
    }

    tensors {
        token_embd:  embed  "token_embd"  [n_embd, n_vocab];
        output_norm: vector "output_norm" [n_embd];
        output:      linear "output"      [n_embd -> n_vocab];

        layer {
            attn_norm:    vector  "attn_norm"          [n_embd];
            wq:           linear  "attn_q"             [n_embd -> n_head * head_dim];
            wk:           linear  "attn_k"             [n_embd -> n_head_kv * head_dim];
            wv:           linear  "attn_v"             [n_embd -> n_head_kv * head_dim_v];
            wo:           linear  "attn_output"        [n_head * head_dim_v -> n_embd];
            ffn_norm:     vector  "ffn_norm"           [n_embd];
            router:       linear  "ffn_gate_inp"       [n_embd -> n_expert];
            gate_exps:    experts "ffn_gate_exps"      [n_embd -> n_ff_exp; n_expert];
            up_exps:      experts "ffn_up_exps"        [n_embd -> n_ff_exp; n_expert];
            down_exps:    experts "ffn_down_exps"      [n_ff_exp -> n_embd; n_expert];
            router_shexp: linear  "ffn_gate_inp_shexp" [n_embd -> 1];
            gate_shexp:   linear  "ffn_gate_shexp"     [n_embd -> n_ff_shexp];
            up_shexp:     linear  "ffn_up_shexp"       [n_embd -> n_ff_shexp];
            down_shexp:   linear  "ffn_down_shexp"     [n_ff_shexp -> n_embd];
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm, eps);
            let q = rope(heads(wq(h), n_head));
            let k = rope(heads(wk(h), n_head_kv));
            let v = heads(wv(h), n_head_kv);
            x += wo(attention(q, k, v));
            let h = rms_norm(x, ffn_norm, eps);
            let shared = down_shexp(silu(gate_shexp(h)) * up_shexp(h)) * sigmoid(router_shexp(h));
            let routed = moe(h, router = router(h), gate = gate_exps, up = up_exps, down = down_exps, act = silu,
                             gating = softmax, n_used = n_expert_used, norm_weights = false);
            x += routed + shared;
        }
        output(rms_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2 }
}
