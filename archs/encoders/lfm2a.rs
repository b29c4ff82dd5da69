//! LFM2 Audio: a conformer of NeMo, which reduces the frames to an eighth. The results are normalized and projected.

arch_macros::encoder! {
    name: "lfm2a";
    of: audio;

    hparams {
        n_out: usize = "projection_dim";
        n_mid: usize = "projector.hidden_length" or file_rows("mm.a.mlp.1.weight");
    }

    audio {
        rate: 16000;
        mel: conformer(n_mel);
        frames: 1 every 1;
        chunk: cut(n_pos);
    }

    text { audio }

    tensors {
        use depthwise_frames;
        norm: norm   "mm.a.mlp.0" [n_embd];
        fc1:  linear "mm.a.mlp.1" [n_embd -> n_mid];
        fc2:  linear "mm.a.mlp.3" [n_mid -> n_out];
        ignore "a.position_embd", "a.position_embd_norm", "a.embd_to_logits"; // of generated audio
        layer {
            use distance_conformer_block;
        }
    }

    graph {
        let x = embedded_frames();
        let distances = sinusoids_of(x, n_embd);
        for layer {
            x = conformer(x, distances);
        }
        fc2(gelu_erf(fc1(layer_norm(x, norm, 0.00001))))
    }

    test { n_embd: 64, n_head: 4, n_layer: 3, n_ff: 64, n_out: 64, n_mel: 18, n_pos: 160, n_channels: 8, width: 96, taps: 5, n_mid: 48 }
}
