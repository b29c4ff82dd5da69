//! EXAONE 4: norms after attention and the feed-forward network instead of before, RMS norms per query and
//! key head. A model with sliding windows, such as the 32B model, applies rotary positions only in their layers.

arch_macros::arch! {
    name: "exaone4";
    rope: neox;

    models {
        "32B": n_layer == 64;
        "published": n_layer == 30 || n_layer == 64;
    }

    hparams {
        // Files of the smaller published model may have a window, but only files with windows list their layers.
        let has_windows = model_is("32B") || (n_swa > 0 && given(swa_pattern));
        let is_swa = has_windows && swa_pattern;
        let use_rope = !has_windows || swa_pattern;
        warn !given(n_swa) || n_swa == 0 || given(swa_pattern) || model_is("published"),
             "attention.sliding_window_pattern is missing: all layers have full attention, but models of this depth may use attention.sliding_window";
    }

    tensors {
        use tied_output, sliding_window(length = 4096, period = 4);
        rope_freqs?: vector "rope_freqs" [n_rot / 2];

        layer {
            use qk_norm_attention, gated_ffn;
            attn_post_norm, ffn_post_norm: vector "post_attention_norm", "post_ffw_norm" [n_embd];
        }
    }

    graph {
        let x = with_media(token_embd[tokens]);
        for layer {
            let attn = attend(x, rotated = use_rope, factors = rope_freqs, window = sliding(n_swa, is_swa));
            x += rms_norm(attn, attn_post_norm);
            x += rms_norm(ffn(x), ffn_post_norm);
        }
        output(rms_norm(x, output_norm))
    }

    checkpoint "Exaone4ForCausalLM" {
        n_swa = "sliding_window" or 0;
        swa_pattern = "layer_types" == text("sliding_attention");
        without rope_freqs "the factors follow from the rotary scaling of the configuration";
        attn_post_norm <- ".post_attention_layernorm";
        ffn_post_norm <- ".post_feedforward_layernorm";
    }

    test { n_embd: 256, n_head: 4, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_swa: 32 }
}
