//! GLM-ASR: the encoder of Whisper over whole chunks of 30 seconds, with rotary positions along time. Rows with sound
//! are concatenated and projected, and each chunk is enclosed in two learned rows.

arch_macros::encoder! {
    name: "glma";
    of: audio;

    hparams {
        stack: usize = "projector.stack_factor";
    }

    audio {
        rate: 16000;
        mel: whisper(n_mel);
        frames: 5 every 2;
        chunk: trimmed(n_pos);
    }

    text { audio }

    tensors {
        use convolved_frames;
        norm_pre:  norm   "mm.a.norm_pre" [n_embd];
        joined:    linear "mm.a.mlp.1"    [n_embd * stack -> 2 * n_out];
        projected: linear "mm.a.mlp.2"    [2 * n_out -> n_out];
        first, last: raw "v.boi", "v.eoi" [n_out];
        // RoPE replaces this table.
        ignore "a.position_embd";

        layer {
            use vit_block(activation = gelu_erf);
        }
    }

    fn placed(x: [head_dim, n_head, T]) { rope_time(x, 10000.0, head_dim / 2) }

    graph {
        let x = convolved_frames();
        for layer {
            x += attend(layer_norm(x, ln1));
            x += ffn(layer_norm(x, ln2));
        }
        let h = stack_rows(layer_norm(x, norm_pre), stack);
        sounding(projected(gelu_erf(joined(h))), stack, first, last)
    }

    test { n_embd: 64, n_head: 4, n_layer: 3, n_ff: 256, n_out: 64, n_mel: 16, n_pos: 40, stack: 4 }
}
