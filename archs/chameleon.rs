//! Chameleon, its text path: a LayerNorm on each query and key head; in the larger models RMS norms behind attention and feed-forward
//! network instead of before them. Logits of image tokens are the least there are, so that text comes out. No results are recorded for
//! it; its logits of text tokens were compared by hand.

arch_macros::arch! {
    name: "chameleon";
    rope: norm;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        norm_behind: bool = "swin_norm" or false;
        let image_first = 4;
        let image_end = 8196;
        check n_vocab > image_end, "the vocabulary has the image tokens 4 to 8195 and others behind them";
        check head_dim == head_dim_v && head_dim == n_rot, "heads of keys and values have one size and rotate whole";
    }

    tensors {
        use tied_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention;
            q_norm:  vector "attn_q_norm"      [head_dim, n_head];
            k_norm:  vector "attn_k_norm"      [head_dim, n_head_kv];
            q_bias?: raw    "attn_q_norm.bias" [head_dim, n_head];
            k_bias?: raw    "attn_k_norm.bias" [head_dim, n_head_kv];
            use gated_ffn;
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            if norm_behind {
                x += rms_norm(attend_normed(x), attn_norm, eps);
                x += rms_norm(ffn(x), ffn_norm, eps);
            } else {
                x += attend_normed(rms_norm(x, attn_norm, eps));
                x += ffn(rms_norm(x, ffn_norm, eps));
            }
        }
        let logits = output(rms_norm(x, output_norm, eps));
        let images = clamp(logits[image_first..image_end], -3.4028235e38, -3.4028235e38);
        concat(concat(logits[0..image_first], images), logits[image_end..n_vocab])
    }

    fn attend_normed(x) {
        let q = layer_norm(heads(wq(x), n_head), q_norm, 0.00001);
        let k = layer_norm(heads(wk(x), n_head_kv), k_norm, 0.00001);
        if has(q_bias) { q += q_bias; }
        if has(k_bias) { k += k_bias; }
        wo(attention(rope(q), rope(k), heads(wv(x), n_head_kv)))
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 10240 }
}
