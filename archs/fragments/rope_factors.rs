//! Frequency factors for rotary positions: one vector, or one each for short and long contexts.

fragment! {
    tensors {
        rope_freqs?, rope_short?, rope_long?: vector "rope_freqs", "rope_factors_short", "rope_factors_long" [n_rot / 2];
    }

    checkpoint {
        without rope_freqs, rope_short, rope_long "the factors follow from the rotary scaling of the configuration";
    }
}
