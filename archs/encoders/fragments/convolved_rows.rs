//! Two convolutions of stride 2 that each double the width, and a projection.

fragment! {
    tensors {
        conv1: linear "mm.0"        [9 * n_embd -> 2 * n_embd];
        conv2: linear "mm.1"        [18 * n_embd -> 4 * n_embd];
        fc:    linear "mm.model.fc" [4 * n_embd -> n_out];
    }

    fn convolved(x: [n_embd, T]) { fc(conv_grid(conv_grid(x, conv1, 2), conv2, 2)) }
}
