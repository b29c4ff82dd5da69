//! GPT-2: learned positions, layer norms, biases in all projections, and a GELU feed-forward network without
//! a gate.

arch_macros::arch! {
    name: "gpt2";
    rope: none;

    tensors {
        use tied_output(kind = norm);
        position_embd: embed "position_embd" [n_embd, n_ctx_train];

        layer {
            attn_norm, ffn_norm: norm [n_embd];
            use self_attention;
            use plain_ffn;
        }
    }

    graph {
        let x = token_embd[tokens] + position_embd[positions];
        for layer {
            x += attend(layer_norm(x, attn_norm), rotated = false);
            x += ffn(layer_norm(x, ffn_norm));
        }
        output(layer_norm(x, output_norm))
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
