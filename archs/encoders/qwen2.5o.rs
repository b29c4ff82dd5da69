//! Qwen2.5-Omni: the encoder of Whisper over two seconds of audio at a time, without padding. Pairs of rows are
//! averaged and projected. Images use the encoder of Qwen2.5-VL.

arch_macros::encoder! {
    name: "qwen2.5o";
    like: "qwen2a";

    hparams {
        n_chunk: usize = "chunk_size" or 100;
        check n_chunk > 0 && n_chunk <= n_pos, "chunk_size must be at most context_length";
    }

    audio {
        rate: 16000;
        mel: whisper(n_mel);
        frames: 5 every 2;
        chunk: ended(n_chunk);
    }

    test { n_embd: 64, n_head: 4, n_layer: 3, n_ff: 96, n_out: 64, n_mel: 16, n_pos: 40, n_chunk: 40 }
}
