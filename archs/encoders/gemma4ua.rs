//! Gemma 4 12B: no encoder. The samples of 40 ms are normalized and projected.

arch_macros::encoder! {
    name: "gemma4ua";
    of: audio;

    hparams {
        n_out: usize = "projection_dim";
        n_pos: usize = "context_length" or 3000;
        // A frame contains the samples of 10 ms.
        let n_frames = n_embd / 160;
        check n_embd > 0 && n_embd % 160 == 0, "embedding_length must be a multiple of the 160 samples of 10 ms";
    }

    audio {
        rate: 16000;
        mel: samples(160);
        frames: 1 every 1;
        chunk: bare(n_pos);
    }

    text { "<|audio>", audio, "<audio|>" }

    tensors {
        proj: linear "mm.a.input_projection" [160 * n_frames -> n_out];
    }

    graph {
        proj(rms_norm(stack_rows(frames[0..160], n_frames), layer_norm_eps))
    }

    test { n_embd: 640, n_head: 4, n_layer: 0, n_ff: 64, n_out: 64, n_pos: 80 }
}
