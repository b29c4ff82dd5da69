//! DBRX: layer norms without biases, queries, keys and values limited to a range, softmax routing with normalized
//! weights.

arch_macros::arch! {
    name: "dbrx";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_epsilon";
        clamp_kqv: f32 = "attention.clamp_kqv";
        // A limit of 0 says that there is none.
        let limit = if clamp_kqv > 0.0 { clamp_kqv } else { 1e30 };
    }

    tensors {
        token_embd:  embed  "token_embd"  [n_embd, n_vocab];
        output_norm: vector "output_norm" [n_embd];
        output:      linear "output"      [n_embd -> n_vocab];

        layer {
            attn_norm:     vector  "attn_norm"        [n_embd];
            wq:            linear  "attn_q"           [n_embd -> n_head * head_dim];
            wk:            linear  "attn_k"           [n_embd -> n_head_kv * head_dim];
            wv:            linear  "attn_v"           [n_embd -> n_head_kv * head_dim_v];
            wo:            linear  "attn_output"      [n_head * head_dim_v -> n_embd];
            attn_out_norm: vector  "attn_output_norm" [n_embd];
            router:        linear  "ffn_gate_inp"     [n_embd -> n_expert];
            gate_exps:     experts "ffn_gate_exps"    [n_embd -> n_ff; n_expert];
            up_exps:       experts "ffn_up_exps"      [n_embd -> n_ff; n_expert];
            down_exps:     experts "ffn_down_exps"    [n_ff -> n_embd; n_expert];
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = layer_norm(x, attn_norm, eps);
            let q = rope(heads(clamp(wq(h), -limit, limit), n_head));
            let k = rope(heads(clamp(wk(h), -limit, limit), n_head_kv));
            let v = heads(clamp(wv(h), -limit, limit), n_head_kv);
            x += wo(attention(q, k, v));
            let h = layer_norm(x, attn_out_norm, eps);
            x += moe(h, router = router(h), gate = gate_exps, up = up_exps, down = down_exps, act = silu,
                     gating = softmax, n_used = n_expert_used, norm_weights = true);
        }
        output(layer_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2 }
}
