//! OLMo 2 and 3: norms after attention and the feed-forward network instead of before, and RMS norms over all
//! query heads and over all key heads. OLMo 3 adds sliding windows, whose layers use unscaled rotary
//! positions.

arch_macros::arch! {
    name: "olmo2";
    rope: neox;

    tensors {
        use untied_output, sliding_window(length = 0, period = 4);

        layer {
            use full_qk_norm_attention, gated_ffn;
            attn_post_norm, ffn_post_norm: vector "post_attention_norm", "post_ffw_norm" [n_embd];
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let attn = attend(x, rope_scale = rope_scale, yarn = !is_swa, window = sliding(n_swa, is_swa));
            x += rms_norm(attn, attn_post_norm);
            x += rms_norm(ffn(x), ffn_post_norm);
        }
        output(rms_norm(x, output_norm))
    }

    test { n_embd: 256, n_head: 4, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_swa: 32 }
}
