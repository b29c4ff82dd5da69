//! Granite 4 hybrid: Granite whose layers without key heads are Mamba 2 mixers, with optional experts in
//! every layer.

arch_macros::arch! {
    name: "granitehybrid";
    like: "granite";

    hparams {
        logit_scale: f32 = "logit_scale" or 0.0;
        let logit_divisor = if logit_scale == 0.0 { 1.0 } else { logit_scale };
        check d_inner == 2 * n_embd, "ssm.inner_size must be twice embedding_length";
        let recurrent = n_head_kv == 0;
    }

    tensors {
        layer {
            if recurrent {
                use mamba2_mixer;
            } else {
                use self_attention;
            }
        }
    }

    graph {
        let x = token_embd[tokens] * embedding_scale;
        for layer {
            let h = rms_norm(x, attn_norm);
            if recurrent {
                x += mixer(h) * residual_scale;
            } else {
                x += attend(h, rotated = use_rope, factors = rope_freqs, short = rope_short, long = rope_long,
                            scale = kq_scale) * residual_scale;
            }
            x += ffn_and_shared(rms_norm(x, ffn_norm)) * residual_scale;
        }
        output(rms_norm(x, output_norm)) / logit_divisor
    }

    test {
        n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, d_conv: 4, d_inner: 512, d_state: 16, n_ssm: 2, n_group: 2
    }
}
