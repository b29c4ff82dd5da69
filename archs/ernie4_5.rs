//! ERNIE 4.5, dense: grouped-query attention, SwiGLU. The attention output is projected without the bias that files
//! may hold.

arch_macros::arch! {
    name: "ernie4_5";
    rope: norm;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
    }

    tensors {
        use tied_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention;
            use gated_ffn;
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm, eps);
            let q = rope(heads(wq(h), n_head));
            let k = rope(heads(wk(h), n_head_kv));
            let v = heads(wv(h), n_head_kv);
            let attn = attention(q, k, v);
            // Recorded results leave the bias of this projection out.
            x += rust!([n_embd, T] => b.linear(::engine::arch::Linear { bias: None, ..l.wo }, attn));
            x += ffn(rms_norm(x, ffn_norm, eps));
        }
        output(rms_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 4, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
