//! Input of NeMo's conformers: a convolution over frequency and time and two depthwise convolutions reduce frames and
//! frequencies to an eighth. The channels are projected to the width of the encoder.

fragment! {
    hparams {
        n_mel: usize = "num_mel_bins";
        n_pos: usize = "context_length" or 12000;
        n_channels: usize = "subsampling.channels" or file_rows("a.conv1d.0.weight");
        let n_freq = (((n_mel + 1) / 2 + 1) / 2 + 1) / 2;
    }

    tensors {
        conv0:    linear "a.conv1d.0"       [9 -> n_channels];
        conv2:    vector "a.conv1d.2"       [9, n_channels];
        shift2:   raw    "a.conv1d.2.bias"  [n_channels];
        conv3:    linear "a.conv1d.3"       [n_channels -> n_channels];
        conv5:    vector "a.conv1d.5"       [9, n_channels];
        shift5:   raw    "a.conv1d.5.bias"  [n_channels];
        conv6:    linear "a.conv1d.6"       [n_channels -> n_channels];
        embedded: linear "a.pre_encode.out" [n_channels * n_freq -> n_embd];
    }

    fn embedded_frames() {
        let x = relu(conv_2d(heads(frames[0..n_mel], n_mel), conv0));
        let x = relu(conv3(depthwise_2d(x, conv2) + shift2));
        let x = relu(conv6(depthwise_2d(x, conv5) + shift5));
        embedded(interleave(merge(x), n_freq))
    }
}
