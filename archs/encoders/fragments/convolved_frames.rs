//! Two convolutions over the frames of a spectrogram, as in Whisper's encoder.

fragment! {
    hparams {
        n_out: usize = "projection_dim";
        n_mel: usize = "num_mel_bins";
        n_pos: usize = "context_length" or 1500;
    }

    tensors {
        conv1: linear "a.conv1d.1" [n_mel * 3 -> n_embd];
        conv2: linear "a.conv1d.2" [n_embd * 3 -> n_embd];
    }

    fn convolved_frames() {
        // Both convolutions have a kernel of three frames, and the second one has a stride of 2. A position therefore
        // contains the five frames that its output depends on. In the input of the second convolution, frames beyond
        // the chunk are zero.
        let before = gelu_erf(conv1(interleave(frames[0..n_mel * 3], 3))) * frames[n_mel * 5 + 1..n_mel * 5 + 2];
        let at = gelu_erf(conv1(interleave(frames[n_mel..n_mel * 4], 3)));
        let behind = gelu_erf(conv1(interleave(frames[n_mel * 2..n_mel * 5], 3))) * frames[n_mel * 5 + 3..n_mel * 5 + 4];
        gelu_erf(conv2(interleave(concat(concat(before, at), behind), 3)))
    }
}
