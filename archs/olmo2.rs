//! OLMo 2 and 3: norms follow attention and the feed-forward network instead of preceding them. RMS norms apply to all
//! query heads and to all key heads together. OLMo 3 adds sliding windows, whose layers use unscaled rotary positions.

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

    checkpoint "Olmo2ForCausalLM" {
        rope_freq_base = "rope_parameters.rope_theta" or "rope_theta" or 500000.0;
        attn_post_norm <- ".post_attention_layernorm";
        ffn_post_norm <- ".post_feedforward_layernorm";
    }

    checkpoint "Olmo3ForCausalLM" like "Olmo2ForCausalLM" {
        n_swa = "sliding_window" or 4096;
        swa_pattern = "layer_types" == text("sliding_attention") or 4;
    }

    test { n_embd: 256, n_head: 4, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_swa: 32 }
}
