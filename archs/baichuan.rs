//! Baichuan 1 and 2: the 7B model uses rotary positions, the 13B model ALiBi.

arch_macros::arch! {
    name: "baichuan";
    like: "decoder";
    rope: norm;

    // Files of other sizes get neither rotary positions nor ALiBi.
    models {
        "7B": n_layer == 32;
        "13B": n_layer == 40;
    }

    hparams {
        // The largest ALiBi slope is 2^-(8 / n_head).
        let max_bias = if model_is("13B") { 8.0 } else { 0.0 };
    }

    tensors {
        output: linear [n_embd -> n_vocab];
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(rms_norm(x, attn_norm), rotated = model_is("7B"), alibi = max_bias);
            x += ffn(rms_norm(x, ffn_norm));
        }
        output(rms_norm(x, output_norm))
    }
}
