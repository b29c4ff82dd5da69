//! Voxtral: the encoder of Whisper over whole chunks of 30 seconds. Consecutive rows are concatenated and projected.

arch_macros::encoder! {
    name: "voxtral";
    like: "qwen2a";

    hparams {
        stack: usize = "projector.stack_factor";
    }

    audio {
        rate: 16000;
        mel: whisper(n_mel);
        frames: 5 every 2;
        chunk: filled(n_pos);
    }

    text { "[BEGIN_AUDIO]", audio }

    tensors {
        without fc;
        joined:    linear "mm.a.mlp.1" [n_embd * stack -> n_out];
        projected: linear "mm.a.mlp.2" [n_out -> n_out];
    }

    graph {
        let x = embedded_frames();
        for layer {
            x += attend(layer_norm(x, ln1));
            x += ffn(layer_norm(x, ln2));
        }
        projected(gelu_erf(joined(stack_rows(layer_norm(x, post_ln), stack))))
    }

    test { n_embd: 64, n_head: 4, n_layer: 3, n_ff: 256, n_out: 64, n_mel: 16, n_pos: 40, stack: 4 }
}
