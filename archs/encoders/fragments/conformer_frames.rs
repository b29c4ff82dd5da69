//! Input of Gemma's conformer: two convolutions over frequency and time, each followed by a norm, reduce frames and
//! frequencies to a quarter. Their channels are projected to the width of the encoder.

fragment! {
    needs(n_mel: usize, n_freq: usize);

    hparams {
        n_first: usize = "subsampling.first_channels" or 128;
        n_second: usize = "subsampling.second_channels" or 32;
    }

    tensors {
        conv1:    linear "a.conv1d.0"         [9 -> n_first];
        norm1:    vector "a.conv1d.0.norm"    [n_first];
        conv2:    linear "a.conv1d.1"         [n_first * 9 -> n_second];
        norm2:    vector "a.conv1d.1.norm"    [n_second];
        embedded: linear "a.input_projection" [n_second * n_freq -> n_embd];
    }

    fn embedded_frames() {
        let x = heads(frames[0..n_mel], n_mel);
        let x = relu(layer_norm(conv_2d(x, conv1), norm1, 0.000001));
        embedded(merge(relu(layer_norm(conv_2d(x, conv2), norm2, 0.000001))))
    }
}
