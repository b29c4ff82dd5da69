//! MiniCPM 1 to 4, dense and with experts: Llama with multipliers for embeddings, residual branches, and
//! logits, which have defaults for old files.

arch_macros::arch! {
    name: "minicpm";
    like: "llama";

    hparams {
        without kq_scale;
        // Defaults are the values of the first models, whose files lack these keys.
        embedding_factor: f32 = "embedding_scale" or 12.0;
        residual_factor: f32 = "residual_scale" or 1.4 / sqrt(n_layer);
        logit_scale: f32 = "logit_scale" or 256.0 / n_embd;
        check logit_scale != 0.0, "logit_scale must not be 0 (logits are divided by it)";
        // A factor of 0 disables the scaling.
        let embedding_scale = if embedding_factor == 0.0 { 1.0 } else { embedding_factor };
        let residual_scale = if residual_factor == 0.0 { 1.0 } else { residual_factor };
    }

    graph {
        let x = with_media(token_embd[tokens]) * embedding_scale;
        for layer {
            let h = rms_norm(x, attn_norm);
            x += attend(h, factors = rope_freqs, short = rope_short, long = rope_long) * residual_scale;
            x += ffn_or_experts(rms_norm(x, ffn_norm)) * residual_scale;
        }
        output(rms_norm(x, output_norm)) / logit_scale
    }

    test { n_embd: 256, n_head: 4, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
