//! Projection of pairs of frames, as in Granite Speech.

fragment! {
    hparams {
        n_in: usize = "num_mel_bins";
        n_pos: usize = "context_length" or 1200;
    }

    tensors {
        embedded: linear "a.input_projection" [n_in -> n_embd];
    }

    fn embedded_pairs() {
        embedded(frames[0..n_in])
    }
}
