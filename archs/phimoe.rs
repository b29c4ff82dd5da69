//! Phi-3.5 with experts: RMS norms with biases, rotary frequencies divided by factors for short or long contexts,
//! softmax routing with normalized weights.

arch_macros::arch! {
    name: "phimoe";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
    }

    tensors {
        token_embd:    embed  "token_embd"         [n_embd, n_vocab];
        output_norm:   vector "output_norm"        [n_embd];
        output:        linear "output"             [n_embd -> n_vocab];
        output_norm_b: raw    "output_norm.bias"   [n_embd];
        rope_long?:    vector "rope_factors_long"  [n_rot / 2];
        rope_short?:   vector "rope_factors_short" [n_rot / 2];

        layer {
            attn_norm:   vector  "attn_norm"      [n_embd];
            attn_norm_b: raw     "attn_norm.bias" [n_embd];
            wq:          linear  "attn_q"         [n_embd -> n_head * head_dim];
            wk:          linear  "attn_k"         [n_embd -> n_head_kv * head_dim];
            wv:          linear  "attn_v"         [n_embd -> n_head_kv * head_dim_v];
            wo:          linear  "attn_output"    [n_head * head_dim_v -> n_embd];
            ffn_norm:    vector  "ffn_norm"       [n_embd];
            ffn_norm_b:  raw     "ffn_norm.bias"  [n_embd];
            router:      linear  "ffn_gate_inp"   [n_embd -> n_expert];
            gate_exps:   experts "ffn_gate_exps"  [n_embd -> n_ff; n_expert];
            up_exps:     experts "ffn_up_exps"    [n_embd -> n_ff; n_expert];
            down_exps:   experts "ffn_down_exps"  [n_ff -> n_embd; n_expert];
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm, eps) + attn_norm_b;
            let q = rope(heads(wq(h), n_head), short = rope_short, long = rope_long);
            let k = rope(heads(wk(h), n_head_kv), short = rope_short, long = rope_long);
            let v = heads(wv(h), n_head_kv);
            x += wo(attention(q, k, v));
            let h = rms_norm(x, ffn_norm, eps) + ffn_norm_b;
            x += moe(h, router = router(h), gate = gate_exps, up = up_exps, down = down_exps, act = silu,
                     gating = softmax, n_used = n_expert_used, norm_weights = true);
        }
        output(rms_norm(x, output_norm, eps) + output_norm_b)
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2 }
}
