//! Hunyuan, dense: grouped-query attention and SwiGLU. RMS norms per query and key head follow the rotation,
//! whose base is scaled by an extension factor.

arch_macros::arch! {
    name: "hunyuan-dense";
    like: "decoder";
    rope: neox;

    hparams {
        alpha: f32 = "rope.scaling.alpha" or 0.0;
        // NTK scaling: stretches the lowest frequency by alpha and leaves the highest unchanged.
        let stretch = if alpha > 0.0 { pow(alpha, 1.0 * head_dim / (head_dim - 2.0)) } else { 1.0 };
        let rope_base = rope_freq_base * stretch;
    }

    tensors {
        layer {
            q_norm, k_norm: vector "attn_q_norm", "attn_k_norm" [head_dim];
        }
    }

    graph {
        let x = embeddings();
        for layer {
            let h = rms_norm(x, attn_norm);
            let q = rms_norm(rope(heads(wq(h), n_head), base = rope_base), q_norm);
            let k = rms_norm(rope(heads(wk(h), n_head_kv), base = rope_base), k_norm);
            let v = heads(wv(h), n_head_kv);
            x += wo(attention(q, k, v));
            x += ffn(rms_norm(x, ffn_norm));
        }
        output(rms_norm(x, output_norm))
    }

    checkpoint "HunYuanDenseV1ForCausalLM" {
        alpha = "rope_parameters.alpha" or "rope_scaling.alpha";
        q_norm <- ".self_attn.query_layernorm";
        k_norm <- ".self_attn.key_layernorm";
    }
}
