//! Nemotron (Llama-3_1-Nemotron-51B and -Ultra-253B): Llama after an architecture search. A layer may have no
//! attention, a linear projection in place of attention, or no feed-forward network. Head counts and
//! feed-forward widths differ by layer.

arch_macros::arch! {
    name: "deci";
    rope: norm;

    tensors {
        use tied_output;
        use rope_factors;
        ignore "attn_output", "ffn_down"; // biases that remain in files for layers without attention or feed-forward network

        layer {
            if n_head > 0 {
                attn_norm: vector [n_embd];
                if n_head_kv > 0 {
                    use self_attention;
                } else {
                    mixer: linear "attn_output" [n_embd -> n_embd];
                }
            }
            if n_ff > 0 {
                ffn_norm: vector [n_embd];
                use gated_ffn;
            }
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let y = x;
            if n_head > 0 {
                let h = rms_norm(x, attn_norm);
                if n_head_kv > 0 {
                    y += attend(h, factors = rope_freqs, short = rope_short, long = rope_long);
                } else {
                    // The bias is ignored, as in the recorded reference results.
                    y += linear_without_bias(mixer, h);
                }
            }
            // A layer without a feed-forward network returns its input.
            if n_ff > 0 {
                x = y + ffn(rms_norm(y, ffn_norm));
            }
        }
        output(rms_norm(x, output_norm))
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
