//! StableLM: layer norms, partial rotary positions; the 12B model norms each query and key head with its own weights and feeds
//! attention and feed-forward side by side from one norm.

arch_macros::arch! {
    name: "stablelm";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_epsilon";
    }

    tensors {
        token_embd:  embed  "token_embd"  [n_embd, n_vocab];
        output_norm: norm   "output_norm" [n_embd];
        output:      linear "output"      [n_embd -> n_vocab];

        layer {
            attn_norm: norm   "attn_norm"   [n_embd];
            wq:        linear "attn_q"      [n_embd -> n_head * head_dim];
            wk:        linear "attn_k"      [n_embd -> n_head_kv * head_dim];
            wv:        linear "attn_v"      [n_embd -> n_head_kv * head_dim_v];
            wo:        linear "attn_output" [n_head * head_dim_v -> n_embd];
            q_norm?:   vector "attn_q_norm" [head_dim, n_head];
            k_norm?:   vector "attn_k_norm" [head_dim, n_head_kv];
            ffn_norm?: norm   "ffn_norm"    [n_embd];
            gate:      linear "ffn_gate"    [n_embd -> n_ff];
            up:        linear "ffn_up"      [n_embd -> n_ff];
            down:      linear "ffn_down"    [n_ff -> n_embd];
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = layer_norm(x, attn_norm, eps);
            let q = heads(wq(h), n_head);
            let k = heads(wk(h), n_head_kv);
            let v = heads(wv(h), n_head_kv);
            if has(q_norm) { q = layer_norm(q, q_norm, eps); }
            if has(k_norm) { k = layer_norm(k, k_norm, eps); }
            x += wo(attention(rope(q), rope(k), v));
            if has(ffn_norm) { h = layer_norm(x, ffn_norm, eps); }
            x += down(silu(gate(h)) * up(h));
        }
        output(layer_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
