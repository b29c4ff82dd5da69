//! Baichuan 1 and 2: the 7B model uses rotary positions, the 13B model ALiBi. The number of layers identifies
//! the model.

arch_macros::arch! {
    name: "baichuan";
    rope: norm;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        // The 7B model has 32 layers, the 13B model 40. Files of other sizes get neither rotary positions nor
        // ALiBi.
        let use_rope = n_layer == 32;
        // The largest ALiBi slope is 2^-(8 / n_head).
        let max_bias = if n_layer == 40 { 8.0 } else { 0.0 };
    }

    tensors {
        use untied_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention;
            use gated_ffn;
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(rms_norm(x, attn_norm, eps), rotated = use_rope, alibi = max_bias);
            x += ffn(rms_norm(x, ffn_norm, eps));
        }
        output(rms_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 4, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
