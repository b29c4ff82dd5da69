//! Token embeddings, final norm, and output projection, which defaults to the embedding matrix.

fragment! {
    options(kind = vector);

    tensors {
        token_embd: embed [n_embd, n_vocab];
        output_norm: kind [n_embd];
        output: linear [n_embd -> n_vocab] or token_embd;
    }

    checkpoint {
        token_embd <- "model.embed_tokens";
        output_norm <- "model.norm";
        output <- "lm_head";
    }
}
