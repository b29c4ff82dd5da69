//! Factors of the results of attention and of the feed-forward network, one per channel.

fragment! {
    tensors {
        ls1, ls2: vector [n_embd];
    }
}
