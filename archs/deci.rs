//! Nemotron (Llama-3_1-Nemotron-51B, -Ultra-253B): the layers of Llama after a search that took parts away. A layer may have no
//! attention, a projection in its place, or no feed-forward network; head counts and widths differ by layer.

arch_macros::arch! {
    name: "deci";
    rope: norm;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
    }

    tensors {
        use tied_output;
        use rope_factors;
        ignore "attn_output", "ffn_down"; // their biases may be left in layers that have no such part

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
                let h = rms_norm(x, attn_norm, eps);
                if n_head_kv > 0 {
                    y += attend(h, factors = rope_freqs, short = rope_short, long = rope_long);
                } else {
                    // Recorded results leave its bias out.
                    y += linear_without_bias(mixer, h);
                }
            }
            // A layer without feed-forward network hands on what came in.
            if n_ff > 0 {
                x = y + ffn(rms_norm(y, ffn_norm, eps));
            }
        }
        output(rms_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
