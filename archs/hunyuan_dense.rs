//! Hunyuan, dense: grouped-query attention and SwiGLU. RMS norms per query and key head follow the rotation,
//! whose base is scaled by an extension factor.

arch_macros::arch! {
    name: "hunyuan-dense";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        alpha: f32 = "rope.scaling.alpha" or 0.0;
        // NTK scaling: stretches the lowest frequency by alpha and leaves the highest unchanged.
        let stretch = if alpha > 0.0 { pow(alpha, 1.0 * head_dim / (head_dim - 2.0)) } else { 1.0 };
        let rope_base = rope_freq_base * stretch;
    }

    tensors {
        use tied_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention;
            q_norm: vector "attn_q_norm" [head_dim];
            k_norm: vector "attn_k_norm" [head_dim];
            use gated_ffn;
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm, eps);
            let q = rms_norm(rope(heads(wq(h), n_head), base = rope_base), q_norm, eps);
            let k = rms_norm(rope(heads(wk(h), n_head_kv), base = rope_base), k_norm, eps);
            let v = heads(wv(h), n_head_kv);
            x += wo(attention(q, k, v));
            x += ffn(rms_norm(x, ffn_norm, eps));
        }
        output(rms_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 4, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
