//! MERaLiON 2: the encoder of Whisper over chunks of equal loudness. Consecutive rows are normalized, concatenated,
//! and projected by a gated network.

arch_macros::encoder! {
    name: "meralion";
    like: "qwen2a";

    hparams {
        stack: usize = "projector.stack_factor" or 15;
        n_mid: usize = "projector.hidden_length" or file_rows("mm.a.mlp.0.weight");
    }

    audio {
        rate: 16000;
        mel: normalized(n_mel);
        frames: 5 every 2;
        chunk: filled(n_pos);
    }

    text { audio }

    tensors {
        without fc;
        norm_pre: norm   "mm.a.norm_pre" [n_embd];
        joined:   linear "mm.a.mlp.0"    [n_embd * stack -> n_mid];
        gate:     linear "mm.a.mlp.1"    [n_mid -> n_mid];
        pool:     linear "mm.a.mlp.2"    [n_mid -> n_mid];
        fc:       linear "mm.a.mlp.3"    [n_mid -> n_out];
    }

    graph {
        let x = embedded_frames();
        for layer {
            x += attend(layer_norm(x, ln1));
            x += ffn(layer_norm(x, ln2));
        }
        let h = silu(joined(stack_rows(layer_norm(layer_norm(x, post_ln), norm_pre, 0.00001), stack)));
        fc(silu(gate(h)) * pool(h))
    }

    test { n_embd: 64, n_head: 4, n_layer: 2, n_ff: 96, n_out: 64, n_mel: 16, n_pos: 40, stack: 4, n_mid: 48 }
}
