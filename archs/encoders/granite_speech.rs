//! Granite Speech: a conformer over pairs of frames, with attention within blocks of columns. Learned queries attend
//! to each window of its output.

arch_macros::encoder! {
    name: "granite_speech";
    of: audio;

    audio {
        rate: 16000;
        mel: granite(n_in / 2);
        frames: 2 every 2;
        chunk: bare(n_pos);
    }

    text { audio }

    tensors {
        use frame_pairs, ctc_branch, learned_queries;
        layer {
            use shaw_conformer_block;
        }
        layer proj "a.proj_blk" 2 {
            use qformer_block;
        }
    }

    graph {
        let x = embedded_pairs();
        let kept = x;
        for layer {
            x = conformer(x);
            x = if il + 1 == n_layer / 2 { with_letters(x) } else { x };
            kept = if il + 1 == kept_layer { x } else { kept };
        }
        let x = padded_rows(prepend(kept, n_kept, x), window);
        let y = first_queries(x);
        for proj {
            y = to_window(to_queries(y), x);
        }
        projected(y)
    }

    test {
        n_embd: 64, n_head: 4, n_layer: 3, n_ff: 128, n_out: 64, n_in: 16, n_pos: 36, block: 12, n_dist: 16, taps: 5, window: 6, rate: 2,
        n_head_proj: 2, n_ctc: 10, n_ff_proj: 80
    }
}
