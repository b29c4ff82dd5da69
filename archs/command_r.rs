//! Command R: parallel attention and feed-forward network after one layer norm, and tied, scaled logits.
//! Models with 64 layers have norms per query and key head.

arch_macros::arch! {
    name: "command-r";
    rope: norm;

    models {
        "R+": n_layer >= 64;
    }

    tensors {
        use tied_output, logit_scale(value = 0.0);

        layer {
            attn_norm: vector "attn_norm" [n_embd];
            use self_attention;
            use gated_ffn;
            if model_is("R+") {
                q_norm: vector "attn_q_norm" [head_dim, n_head];
                k_norm: vector "attn_k_norm" [head_dim, n_head_kv];
            }
        }
    }

    fn queries(x) {
        let q = heads(wq(x), n_head);
        if model_is("R+") { layer_norm(q) * q_norm } else { q }
    }

    fn keys(x) {
        let k = heads(wk(x), n_head_kv);
        if model_is("R+") { layer_norm(k) * k_norm } else { k }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = layer_norm(x, attn_norm);
            x += attend(h) + ffn(h);
        }
        scale_logits(output(layer_norm(x, output_norm)))
    }

    test { n_embd: 256, n_head: 4, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
