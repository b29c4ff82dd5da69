//! StableLM: layer norms and partial rotary positions. The 12B model has norms with separate weights for each
//! query and key head, and parallel attention and feed-forward network after one norm.

arch_macros::arch! {
    name: "stablelm";
    rope: neox;

    tensors {
        use untied_output(kind = norm);

        layer {
            attn_norm: norm "attn_norm" [n_embd];
            use self_attention;
            q_norm?:   vector "attn_q_norm" [head_dim, n_head];
            k_norm?:   vector "attn_k_norm" [head_dim, n_head_kv];
            ffn_norm?: norm   "ffn_norm"    [n_embd];
            use gated_ffn;
        }
    }

    fn queries(x) {
        let q = heads(wq(x), n_head);
        if has(q_norm) { layer_norm(q, q_norm) } else { q }
    }

    fn keys(x) {
        let k = heads(wk(x), n_head_kv);
        if has(k_norm) { layer_norm(k, k_norm) } else { k }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = layer_norm(x, attn_norm);
            x += attend(h);
            if has(ffn_norm) {
                h = layer_norm(x, ffn_norm);
            }
            x += ffn(h);
        }
        output(layer_norm(x, output_norm))
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
