//! Dots 3 Note: a transformer with rotary positions along time, over chunks of a minute. Three convolutions reduce the
//! frames to an eighth.

arch_macros::encoder! {
    name: "dots3note_a";
    of: audio;

    hparams {
        n_out: usize = "projection_dim";
        n_mel: usize = "num_mel_bins";
        n_pos: usize = "context_length" or 750;
        let n_freq = (((n_mel + 1) / 2 + 1) / 2 + 1) / 2;
    }

    audio {
        rate: 16000;
        mel: whisper(n_mel);
        frames: 15 every 8;
        chunk: whole(n_pos);
    }

    text { "<|audio_comp_start|>", audio, "<|audio_comp_end|>" }

    tensors {
        use frame_windows;
        post_ln:  vector "a.post_ln"     [n_embd];
        norm_pre: norm   "mm.a.norm_pre" [n_embd];
        fc1:      linear "mm.a.mlp.1"    [n_embd -> n_out];
        fc2:      linear "mm.a.mlp.3"    [n_out -> n_out];
        layer {
            ln1, ln2: vector [n_embd];
            use vit_attention, gated_ffn;
        }
    }

    fn placed(x: [head_dim, n_head, T]) { rope_time(x, 10000.0, head_dim / 2, halves = true) }

    graph {
        // A position without a complete frame reads zeros.
        let x = convolved_windows() * frames[n_mel * 15 + 7..n_mel * 15 + 8];
        for layer {
            x += attend(rms_norm(x, ln1, layer_norm_eps));
            x += ffn(rms_norm(x, ln2, layer_norm_eps));
        }
        fc2(gelu_erf(fc1(layer_norm(rms_norm(x, post_ln, layer_norm_eps), norm_pre, 0.00001))))
    }

    test { n_embd: 64, n_head: 4, n_layer: 3, n_ff: 96, n_out: 64, n_mel: 18, n_pos: 12, n_channels: 8 }
}
