//! MiniCPM 3: multi-head latent attention as in DeepSeek V2, with MiniCPM's fixed multipliers for embeddings,
//! residual branches, and logits.

arch_macros::arch! {
    name: "minicpm3";
    rope: neox;

    hparams {
        let residual_scale = 1.4 / sqrt(n_layer);
    }

    tensors {
        use tied_output;
        rope_short?, rope_long?: vector "rope_factors_short", "rope_factors_long" [n_rot / 2];

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use latent_attention, gated_ffn;
        }
    }

    graph {
        let x = token_embd[tokens] * 12.0;
        for layer {
            let h = rms_norm(x, attn_norm);
            x += attend_latent(h, short = rope_short, long = rope_long) * residual_scale;
            x += ffn(rms_norm(x, ffn_norm)) * residual_scale;
        }
        output(rms_norm(x, output_norm) * (256.0 / n_embd))
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, q_rank: 512, kv_rank: 512, n_rot: 64 }
}
