//! Refact: ALiBi instead of positions, multi-query attention, and SwiGLU.

arch_macros::arch! {
    name: "refact";
    rope: none;

    tensors {
        use tied_output;
        // Optional tensors that the model does not use.
        ignore "rope_freqs", "rope_factors_long", "rope_factors_short";
        ignore "attn_output.bias", "ffn_gate.bias", "ffn_up.bias", "ffn_down.bias";

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention;
            if n_expert == 0 {
                use gated_ffn;
            } else {
                // No published model has experts. Expert tensors are accepted but not used.
                ignore "ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps";
            }
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(rms_norm(x, attn_norm), rotated = false, alibi = 8.0);
            let h = rms_norm(x, ffn_norm);
            x += if n_expert == 0 { ffn(h) } else { silu(h) };
        }
        output(rms_norm(x, output_norm))
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
