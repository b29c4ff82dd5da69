//! Learned augmented residual layer (LAuReL, arXiv 2411.07501): the input of attention plus a low-rank
//! projection of that input.

fragment! {
    options(rank);

    tensors {
        laurel_l: linear [n_embd -> rank];
        laurel_r: linear [rank -> n_embd];
        laurel_norm: vector "laurel_post_norm" [n_embd];
    }

    fn laurel(x: [n_embd, T]) {
        x + rms_norm(laurel_r(laurel_l(x)), laurel_norm)
    }
}
