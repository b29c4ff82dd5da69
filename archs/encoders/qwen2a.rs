//! Qwen2-Audio: the encoder of Whisper over the audio without padding. Pairs of rows are averaged and projected.

arch_macros::encoder! {
    name: "qwen2a";
    of: audio;

    audio {
        rate: 16000;
        mel: whisper(n_mel);
        frames: 5 every 2;
        chunk: masked(n_pos);
    }

    text { "<|audio_bos|>", audio, "<|audio_eos|>" }

    tensors {
        use whisper_encoder;
        fc: linear "mm.a.fc" [n_embd -> n_out];

        layer {
            use vit_block(activation = gelu_erf);
        }
    }

    graph {
        let x = embedded_frames();
        for layer {
            x += attend(layer_norm(x, ln1));
            x += ffn(layer_norm(x, ln2));
        }
        fc(layer_norm(pool_rows(x, 2), post_ln))
    }

    test { n_embd: 64, n_head: 4, n_layer: 3, n_ff: 96, n_out: 64, n_mel: 16, n_pos: 40 }
}
