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

    checkpoint "BertModel", "BertForMaskedLM" {
        n_token_types = "type_vocab_size" or 2;
        layer_norm_eps = "layer_norm_eps" or 0.000000000001;
        check first("hidden_act", text("gelu")) == text("gelu"), "hidden_act must be gelu for this architecture";
        check first("position_embedding_type", text("absolute")) == text("absolute"), "position_embedding_type must be absolute";
        ignore "pooler.", "cls.", ".embeddings.position_ids";
        token_embd <- "embeddings.word_embeddings";
        token_types <- "embeddings.token_type_embeddings";
        position_embd <- "embeddings.position_embeddings";
        token_embd_norm <- "embeddings.LayerNorm";
        without cls, cls_output "the class has no classifier";
        layer "encoder.layer.{}" {
            wq <- ".attention.self.query";
            wk <- ".attention.self.key";
            wv <- ".attention.self.value";
            wo <- ".attention.output.dense";
            attn_output_norm <- ".attention.output.LayerNorm";
            up <- ".intermediate.dense";
            down <- ".output.dense";
            layer_output_norm <- ".output.LayerNorm";
        }
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_token_types: 2 }
}
