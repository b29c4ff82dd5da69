//! Per-layer token embeddings (Gemma 3n): for each token and layer, a vector of size `n_pl` computed from the
//! token id and its embedding. Use together with `per_layer_input`.

fragment! {
    needs(n_pl: usize);

    tensors {
        pl_embd: embed  "per_layer_token_embd" [n_pl * n_layer, n_vocab];
        pl_proj: linear "per_layer_model_proj" [n_embd -> n_pl * n_layer];
        pl_norm: vector "per_layer_proj_norm"  [n_pl];
    }

    fn per_layer_embeddings(x: [n_embd, T]) {
        let projected = rms_norm(heads(pl_proj(x) / sqrt(n_embd), n_layer), pl_norm);
        (merge(projected) + pl_embd[tokens] * sqrt(n_pl)) / sqrt(2)
    }
}
