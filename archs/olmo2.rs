//! OLMo 2 and 3: norms after attention and feed-forward network and none before, RMS norms over all query and all
//! key heads at once; OLMo 3 adds sliding windows, whose layers keep the trained positions.

arch_macros::arch! {
    name: "olmo2";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        n_swa: usize = "attention.sliding_window" or 0;
        is_swa: pattern = "attention.sliding_window_pattern" or 4;
        let windowed = n_swa > 0 && is_swa;
        let rope_scale = if windowed { 1.0 } else { rope_freq_scale };
    }

    tensors {
        use own_output;

        layer {
            use self_attention;
            q_norm:         vector "attn_q_norm"         [n_head * head_dim];
            k_norm:         vector "attn_k_norm"         [n_head_kv * head_dim];
            attn_post_norm: vector "post_attention_norm" [n_embd];
            use gated_ffn;
            ffn_post_norm: vector "post_ffw_norm" [n_embd];
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let q = heads(rms_norm(wq(x), q_norm, eps), n_head);
            let k = heads(rms_norm(wk(x), k_norm, eps), n_head_kv);
            let q = rope(q, scale = rope_scale, yarn = !windowed);
            let k = rope(k, scale = rope_scale, yarn = !windowed);
            let v = heads(wv(x), n_head_kv);
            let attn = wo(attention(q, k, v, window = standard(n_swa, windowed)));
            x += rms_norm(attn, attn_post_norm, eps);
            x += rms_norm(ffn(x), ffn_post_norm, eps);
        }
        output(rms_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 4, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_swa: 32 }
}
