//! DBRX: layer norms without biases, clamped queries, keys, and values, and softmax routing with normalized
//! weights.

arch_macros::arch! {
    name: "dbrx";
    rope: neox;

    hparams {
        clamp_kqv: f32 = "attention.clamp_kqv";
        check clamp_kqv >= 0.0, "attention.clamp_kqv must not be negative";
    }

    tensors {
        use untied_output;

        layer {
            attn_norm: vector "attn_norm" [n_embd];
            use clipped_attention;
            attn_out_norm: vector "attn_output_norm" [n_embd];
            use experts;
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(layer_norm(x, attn_norm));
            x += routed(layer_norm(x, attn_out_norm));
        }
        output(layer_norm(x, output_norm))
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2 }
}
