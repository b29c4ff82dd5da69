//! Token embeddings, which serve as the output matrix where a file has none, and the norm before it.

fragment! {
    options(kind = vector);

    tensors {
        token_embd: embed [n_embd, n_vocab];
        output_norm: kind [n_embd];
        output: linear [n_embd -> n_vocab] or token_embd;
    }
}
