//! BERT and its sentence encoders (MiniLM, BGE, E5, GTE): bidirectional attention, learned positions,
//! post-norm blocks, and the exact GELU.

arch_macros::arch! {
    name: "bert";
    rope: none;
    attention: bidirectional;

    hparams {
        n_token_types: usize = "/tokenizer.ggml.token_type_count";
        check n_token_types > 0, "tokenizer.ggml.token_type_count must not be 0";
    }

    tensors {
        token_embd: embed [n_embd, n_vocab];
        token_types?: vector [n_embd, n_token_types];
        position_embd: embed [n_embd, n_ctx_train];
        token_embd_norm: norm [n_embd];
        cls?: linear [n_embd -> n_embd];
        cls_output?: linear "cls.output" [n_embd -> n_labels];

        layer {
            use self_attention;
            attn_output_norm: norm [n_embd];
            use plain_ffn(activation = gelu_erf);
            layer_output_norm: norm [n_embd];
        }
    }

    fn embeddings() { token_embd[tokens] + position_embd[positions] }

    fn attention_block(x) { attend(x, rotated = false) }

    graph {
        let x = embeddings();
        // A prompt is a single segment, so every token has type 0.
        if has(token_types) {
            x += row(token_types, 0);
        }
        let x = layer_norm(x, token_embd_norm);
        for layer {
            x = layer_norm(x + attention_block(x), attn_output_norm);
            x = layer_norm(x + ffn(x), layer_output_norm);
        }
        x
    }

    rank {
        let h = if has(cls) { tanh(cls(pooled)) } else { pooled };
        cls_output(h)
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_token_types: 2 }
}
