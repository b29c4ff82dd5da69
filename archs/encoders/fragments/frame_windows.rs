//! Input of audio encoders: three convolutions over frequency and time reduce the 15 frames of a position to one, and
//! the frequencies to an eighth. Their channels are projected to the width of the encoder.

fragment! {
    needs(n_mel: usize, n_freq: usize);

    hparams {
        n_channels: usize = "downsample.hidden_length" or 480;
    }

    tensors {
        conv1:    linear "a.conv2d.1" [9 -> n_channels];
        conv2:    linear "a.conv2d.2" [n_channels * 9 -> n_channels];
        conv3:    linear "a.conv2d.3" [n_channels * 9 -> n_channels];
        conv_out: linear "a.conv_out" [n_channels * n_freq -> n_embd];
    }

    fn convolved_windows() {
        // Frames beyond the piece are zero in the input of each convolution, according to the frame at the center of
        // its kernel. Every other frame is such a center.
        let first = interleave(frames[n_mel * 15..n_mel * 15 + 14], 7)[7..14];
        let second = interleave(first[0..6], 3)[3..6];
        let x = gelu_erf(conv_frames(heads(frames[0..n_mel * 15], 15), conv1)) * heads(first, 7);
        let x = gelu_erf(conv_frames(x, conv2)) * heads(second, 3);
        let x = gelu_erf(conv_frames(x, conv3));
        conv_out(interleave(merge(x), n_freq))
    }
}
