//! gpt-oss: attention sinks, windows on every second layer, biases everywhere, experts with a clamped gate weighted by
//! a softmax over the chosen.

arch_macros::arch! {
    name: "gpt-oss";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        n_swa: usize = "attention.sliding_window";
        is_swa: pattern = "attention.sliding_window_pattern" or 2;
        rope_base_swa: f32 = "rope.freq_base_swa" or rope_freq_base;
        n_ff_exp: [usize] = "expert_feed_forward_length";
        let rope_base = if is_swa { rope_base_swa } else { rope_freq_base };
    }

    tensors {
        token_embd:  embed  "token_embd"  [n_embd, n_vocab];
        output_norm: vector "output_norm" [n_embd];
        output:      linear "output"      [n_embd -> n_vocab];

        layer {
            attn_norm: vector  "attn_norm"           [n_embd];
            wq:        linear  "attn_q"              [n_embd -> n_head * head_dim];
            wk:        linear  "attn_k"              [n_embd -> n_head_kv * head_dim];
            wv:        linear  "attn_v"              [n_embd -> n_head_kv * head_dim_v];
            sinks:     vector  "attn_sinks"          [n_head];
            wo:        linear  "attn_output"         [n_head * head_dim_v -> n_embd];
            post_norm: vector  "post_attention_norm" [n_embd];
            router:    linear  "ffn_gate_inp"        [n_embd -> n_expert];
            gate_exps: experts "ffn_gate_exps"       [n_embd -> n_ff_exp; n_expert];
            up_exps:   experts "ffn_up_exps"         [n_embd -> n_ff_exp; n_expert];
            down_exps: experts "ffn_down_exps"       [n_ff_exp -> n_embd; n_expert];
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm, eps);
            let q = rope(heads(wq(h), n_head), base = rope_base);
            let k = rope(heads(wk(h), n_head_kv), base = rope_base);
            let v = heads(wv(h), n_head_kv);
            x += wo(attention(q, k, v, sinks = sinks, window = standard(n_swa, is_swa)));
            let h = rms_norm(x, post_norm, eps);
            // The numbers of the published model: its files do not hold them.
            x += moe(h, router = router(h), gate = gate_exps, up = up_exps, down = down_exps, act = gelu_quick,
                     gating = softmax_weight, n_used = n_expert_used, norm_weights = false, limit = 7.0,
                     up_offset = 1.0);
        }
        output(rms_norm(x, output_norm, eps))
    }

    test {
        n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, n_ff_exp: 384,
        n_swa: 32
    }
}
