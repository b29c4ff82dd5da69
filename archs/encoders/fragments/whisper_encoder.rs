//! Input of Whisper's encoder: two convolutions over the frames of a spectrogram, plus a learned embedding for each
//! position.

fragment! {
    tensors {
        use convolved_frames;
        position_embd: embed "a.position_embd" [n_embd, n_pos];
        post_ln:       norm  "a.post_ln"       [n_embd];
    }

    fn embedded_frames() {
        convolved_frames() + position_embd[positions]
    }
}
