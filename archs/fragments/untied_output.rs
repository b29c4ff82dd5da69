//! Token embeddings, final norm, and an untied output projection, which every file must contain.

fragment! {
    options(kind = vector);

    tensors {
        token_embd: embed [n_embd, n_vocab];
        output_norm: kind [n_embd];
        output: linear [n_embd -> n_vocab];
    }

    checkpoint {
        token_embd <- "model.embed_tokens";
        output_norm <- "model.norm";
        output <- "lm_head" or "model.embed_tokens";
    }
}
