//! BitNet b1.58: matrices of three values, with an RMS norm before the last projection of attention and feed-forward network.

arch_macros::arch! {
    name: "bitnet";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
    }

    tensors {
        use tied_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention;
            use gated_ffn;
            attn_sub_norm: vector [n_head * head_dim_v];
            ffn_sub_norm:  vector [n_ff];
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm, eps);
            let q = rope(heads(wq(h), n_head));
            let k = rope(heads(wk(h), n_head_kv));
            x += wo(rms_norm(attention(q, k, heads(wv(h), n_head_kv)), attn_sub_norm, eps));
            let h = rms_norm(x, ffn_norm, eps);
            x += down(rms_norm(silu(gate(h)) * up(h), ffn_sub_norm, eps));
        }
        output(rms_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
