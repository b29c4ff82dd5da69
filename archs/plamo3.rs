//! PLaMo 3: a fused query, key, and value projection, and a fused gate and up projection. Norms apply per query and key
//! head and after each block. Up to seven of eight layers have sliding windows with their own rotary base.

arch_macros::arch! {
    name: "plamo3";
    rope: neox;

    tensors {
        use tied_output, sliding_window(length = 0, period = 8, base = 10000.0);

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use qk_norm_attention, fused_gated_ffn;
            attn_post, ffn_post: raw "post_attention_norm", "post_ffw_norm" [n_embd];
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let a = attend(rms_norm(x, attn_norm), base = rope_base, window = sliding(n_swa, is_swa));
            x += rms_norm(a) * attn_post;
            x += rms_norm(ffn(rms_norm(x, ffn_norm))) * ffn_post;
        }
        output(rms_norm(x, output_norm))
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_swa: 32 }
}
