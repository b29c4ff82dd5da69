//! Arctic: a dense feed-forward network after attention, in parallel with a mixture of experts on the layer's
//! input.

arch_macros::arch! {
    name: "arctic";
    rope: norm;

    tensors {
        use tied_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention;
            use gated_ffn(width = n_embd), experts;
            ffn_norm_exps: vector "ffn_norm_exps" [n_embd];
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let y = x + attend(rms_norm(x, attn_norm));
            y += ffn(rms_norm(y, ffn_norm));
            x = y + routed(rms_norm(x, ffn_norm_exps));
        }
        output(rms_norm(x, output_norm))
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2 }
}
