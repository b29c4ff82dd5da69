//! Gemma 4 E2B and E4B: a conformer (USM) over the audio without padding. Each row covers four frames. The results are
//! projected, normalized, and projected again.

arch_macros::encoder! {
    name: "gemma4a";
    of: audio;

    hparams {
        n_out: usize = "projection_dim";
        n_mel: usize = "num_mel_bins";
        let n_freq = ((n_mel + 1) / 2 + 1) / 2;
        n_pos: usize = "context_length" or 3000;
        n_mid: usize = "projector.hidden_length" or file_rows("a.pre_encode.out.weight");
    }

    audio {
        rate: 16000;
        mel: gemma4(n_mel);
        frames: 1 every 1;
        chunk: bare(n_pos);
    }

    text { "<|audio>", audio, "<audio|>" }

    tensors {
        use conformer_frames;
        widened: linear "a.pre_encode.out"      [n_embd -> n_mid];
        proj:    linear "mm.a.input_projection" [n_mid -> n_out];
        layer {
            use conformer_block(window = 12, taps = 5);
        }
    }

    graph {
        let x = embedded_frames();
        for layer {
            x += first_ffn(x);
            x += attend_near(x);
            x += convolve(x);
            x += last_ffn(x);
            x = rms_norm(x, out_norm, 0.000001);
        }
        proj(rms_norm(widened(x), 0.000001))
    }

    test { n_embd: 64, n_head: 4, n_layer: 3, n_ff: 256, n_out: 64, n_mel: 18, n_pos: 80, n_first: 8, n_second: 4, n_mid: 48 }
}
