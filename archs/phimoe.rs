//! Phi-3.5 with experts: norms with biases, LongRoPE frequency factors for short and long contexts, and
//! softmax routing with normalized weights.

arch_macros::arch! {
    name: "phimoe";
    rope: neox;

    tensors {
        use untied_output;
        output_norm_b: raw    "output_norm.bias"   [n_embd];
        rope_long?:    vector "rope_factors_long"  [n_rot / 2];
        rope_short?:   vector "rope_factors_short" [n_rot / 2];

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            attn_norm_b: raw "attn_norm.bias" [n_embd];
            use self_attention;
            ffn_norm_b: raw "ffn_norm.bias" [n_embd];
            use experts;
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(rms_norm(x, attn_norm) + attn_norm_b, short = rope_short, long = rope_long);
            let h = rms_norm(x, ffn_norm) + ffn_norm_b;
            x += routed(h);
        }
        output(rms_norm(x, output_norm) + output_norm_b)
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2 }
}
