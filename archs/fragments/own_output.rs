//! Token embeddings, and an output matrix that every file has, with the norm before it.

fragment! {
    options(kind = vector);

    tensors {
        token_embd: embed [n_embd, n_vocab];
        output_norm: kind [n_embd];
        output: linear [n_embd -> n_vocab];
    }
}
