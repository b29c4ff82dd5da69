//! Qwen3-Omni and Qwen3-ASR: a transformer over pieces of 100 frames. Three convolutions reduce each piece to 13 rows.
//! Rows attend to a group of eight pieces, and their positions start at 0 in each piece.

arch_macros::encoder! {
    name: "qwen3a";
    of: audio;

    hparams {
        n_out: usize = "projection_dim";
        n_mel: usize = "num_mel_bins";
        let n_freq = (((n_mel + 1) / 2 + 1) / 2 + 1) / 2;
    }

    audio {
        rate: 16000;
        mel: whisper(n_mel);
        frames: 15 every 8 in pieces(100);
        chunk: cut(8 * 13);
    }

    text { "<|audio_start|>", audio, "<|audio_end|>" }

    tensors {
        use frame_windows;
        position_embd: embed  "a.position_embd" [n_embd, 13..];
        post_ln:       norm   "a.post_ln"       [n_embd];
        fc1:           linear "mm.a.mlp.1"      [n_embd -> n_embd];
        fc2:           linear "mm.a.mlp.2"      [n_embd -> n_out];

        layer {
            use vit_block(activation = gelu_erf);
        }
    }

    graph {
        let x = convolved_windows() + position_embd[positions];
        for layer {
            x += attend(layer_norm(x, ln1));
            x += ffn(layer_norm(x, ln2));
        }
        fc2(gelu_erf(fc1(layer_norm(x, post_ln))))
    }

    test { n_embd: 64, n_head: 4, n_layer: 3, n_ff: 96, n_out: 64, n_mel: 18, n_channels: 8 }
}
