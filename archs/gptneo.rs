//! GPT-Neo: GPT-2 with unscaled scores and sliding windows in every other layer.

arch_macros::arch! {
    name: "gptneo";
    like: "gpt2";

    hparams {
        n_swa: usize = "attention.sliding_window";
        swa_pattern: dense_first = "attention.sliding_window_pattern" or 2;
        let is_swa = n_swa > 0 && swa_pattern;
    }

    graph {
        let x = token_embd[tokens] + position_embd[positions];
        for layer {
            x += attend(layer_norm(x, attn_norm), rotated = false, scale = 1.0, window = sliding(n_swa, is_swa));
            x += ffn(layer_norm(x, ffn_norm));
        }
        output(layer_norm(x, output_norm))
    }

    test { n_embd: 128, n_head: 4, n_head_kv: 4, n_layer: 2, n_ff: 192, n_vocab: 128, n_swa: 32 }
}
