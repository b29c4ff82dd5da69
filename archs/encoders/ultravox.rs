//! Ultravox: the encoder of Whisper over the audio without padding. Consecutive rows are concatenated and projected by
//! a gated network.

arch_macros::encoder! {
    name: "ultravox";
    like: "qwen2a";

    hparams {
        stack: usize = "projector.stack_factor";
        n_mid: usize = "projector.hidden_length" or file_rows("mm.a.mlp.1.weight") / 2;
    }

    audio {
        rate: 16000;
        mel: whisper(n_mel);
        frames: 5 every 2;
        chunk: bare(n_pos);
    }

    text { audio }

    tensors {
        without fc;
        norm_pre:  vector "mm.a.norm_pre" [n_embd * stack];
        joined:    linear "mm.a.mlp.1"    [n_embd * stack -> 2 * n_mid];
        norm_mid:  vector "mm.a.norm_mid" [n_mid];
        projected: linear "mm.a.mlp.2"    [n_mid -> n_out];
    }

    graph {
        let x = embedded_frames();
        for layer {
            x += attend(layer_norm(x, ln1));
            x += ffn(layer_norm(x, ln2));
        }
        let h = joined(rms_norm(stack_rows(layer_norm(x, post_ln), stack), norm_pre, 0.000001));
        projected(rms_norm(silu(h[n_mid..]) * h[..n_mid], norm_mid, 0.000001))
    }

    test { n_embd: 64, n_head: 4, n_layer: 2, n_ff: 96, n_out: 64, n_mel: 16, n_pos: 40, stack: 4, n_mid: 48 }
}
