//! Adds a layer's part of `per_layer_embeddings` to its result.

fragment! {
    needs(n_pl: usize);

    tensors {
        pl_gate:      linear "inp_gate"  [n_embd -> n_pl];
        pl_out:       linear "proj"      [n_pl -> n_embd];
        pl_post_norm: vector "post_norm" [n_embd];
    }

    fn per_layer_input(x: [n_embd, T], embeddings: [n_pl * n_layer, T]) {
        let part = embeddings[il * n_pl..(il + 1) * n_pl];
        rms_norm(pl_out(gelu(pl_gate(x)) * part), pl_post_norm)
    }
}
