//! Decoder of Llama 1 and 2 and many later models: grouped-query attention and SwiGLU, with an RMS norm before
//! each. A child sets `rope:`.

parent! {
    tensors {
        use tied_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention, gated_ffn;
        }
    }

    fn embeddings() { token_embd[tokens] }

    graph {
        let x = embeddings();
        for layer {
            x += attend(rms_norm(x, attn_norm));
            x += ffn(rms_norm(x, ffn_norm));
        }
        output(rms_norm(x, output_norm))
    }

    checkpoint {
        attn_norm <- ".input_layernorm";
        ffn_norm <- ".post_attention_layernorm";
    }

    test { n_embd: 256, n_head: 4, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
