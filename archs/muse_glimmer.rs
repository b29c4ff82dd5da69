//! Muse Glimmer: an RMS norm without weights on the embeddings, rotary positions in sliding-window layers only, and
//! gated attention. Norms apply per head and after each block. Logits are scaled and soft-capped.

arch_macros::arch! {
    name: "muse-glimmer";
    rope: norm;

    hparams {
        // Epsilon of the norms after the blocks; not stored in files.
        let post_eps = 0.00000001;
    }

    tensors {
        use untied_output, logit_scale, logit_softcap(cap = 30.0), sliding_window(period = 4);

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use qk_norm_attention, gated_ffn;
            attn_gate: linear [n_embd -> n_head * head_dim_v];
            attn_post_norm, ffn_post_norm: vector "post_attention_norm", "post_ffw_norm" [n_embd];
        }
    }

    graph {
        let x = rms_norm(with_media(token_embd[tokens]));
        for layer {
            let h = rms_norm(x, attn_norm);
            let attn = attend_heads(h, rotated = swa_pattern, base = rope_base_swa, window = sliding(n_swa, is_swa));
            x += rms_norm(wo(sigmoid(attn_gate(h)) * attn), attn_post_norm, post_eps);
            x += rms_norm(ffn(rms_norm(x, ffn_norm)), ffn_post_norm, post_eps);
        }
        cap_logits(scale_logits(output(rms_norm(x, output_norm))))
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_swa: 32 }
}
