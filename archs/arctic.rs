//! Arctic: a dense feed-forward network after attention, and in parallel to both a mixture of experts on the layer's
//! input.

arch_macros::arch! {
    name: "arctic";
    rope: norm;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
    }

    tensors {
        token_embd:  embed  "token_embd"  [n_embd, n_vocab];
        output_norm: vector "output_norm" [n_embd];
        output:      linear "output"      [n_embd -> n_vocab] or token_embd;

        layer {
            attn_norm:     vector  "attn_norm"     [n_embd];
            wq:            linear  "attn_q"        [n_embd -> n_head * head_dim];
            wk:            linear  "attn_k"        [n_embd -> n_head_kv * head_dim];
            wv:            linear  "attn_v"        [n_embd -> n_head_kv * head_dim_v];
            wo:            linear  "attn_output"   [n_head * head_dim_v -> n_embd];
            ffn_norm:      vector  "ffn_norm"      [n_embd];
            gate:          linear  "ffn_gate"      [n_embd -> n_embd];
            up:            linear  "ffn_up"        [n_embd -> n_embd];
            down:          linear  "ffn_down"      [n_embd -> n_embd];
            router:        linear  "ffn_gate_inp"  [n_embd -> n_expert];
            ffn_norm_exps: vector  "ffn_norm_exps" [n_embd];
            gate_exps:     experts "ffn_gate_exps" [n_embd -> n_ff; n_expert];
            up_exps:       experts "ffn_up_exps"   [n_embd -> n_ff; n_expert];
            down_exps:     experts "ffn_down_exps" [n_ff -> n_embd; n_expert];
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm, eps);
            let q = rope(heads(wq(h), n_head));
            let k = rope(heads(wk(h), n_head_kv));
            let v = heads(wv(h), n_head_kv);
            let y = x + wo(attention(q, k, v));
            let h = rms_norm(y, ffn_norm, eps);
            y += down(silu(gate(h)) * up(h));
            let h = rms_norm(x, ffn_norm_exps, eps);
            x = y + moe(h, router = router(h), gate = gate_exps, up = up_exps, down = down_exps, act = silu,
                        gating = softmax, n_used = n_expert_used, norm_weights = true);
        }
        output(rms_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2 }
}
