//! OLMo 1: LayerNorms without weights, queries, keys and values limited to a range, SwiGLU.

arch_macros::arch! {
    name: "olmo";
    rope: norm;

    hparams {
        eps: f32 = "attention.layer_norm_epsilon";
        clamp_kqv: f32 = "attention.clamp_kqv" or 0.0;
    }

    tensors {
        token_embd: embed  "token_embd" [n_embd, n_vocab];
        output:     linear "output"     [n_embd -> n_vocab] or token_embd;

        layer {
            use self_attention;
            use gated_ffn;
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = layer_norm(x, eps);
            let q = wq(h);
            let k = wk(h);
            let v = wv(h);
            if clamp_kqv > 0.0 {
                q = clamp(q, -clamp_kqv, clamp_kqv);
                k = clamp(k, -clamp_kqv, clamp_kqv);
                v = clamp(v, -clamp_kqv, clamp_kqv);
            }
            x += wo(attention(rope(heads(q, n_head)), rope(heads(k, n_head_kv)), heads(v, n_head_kv)));
            x += ffn(layer_norm(x, eps));
        }
        output(layer_norm(x, eps))
    }

    test { n_embd: 256, n_head: 4, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
