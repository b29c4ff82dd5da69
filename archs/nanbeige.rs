//! Nanbeige, looped: runs the layers of Llama several times with the same weights. Each pass has its own keys
//! and values, and the output norm is applied between passes.

arch_macros::arch! {
    name: "nanbeige";
    like: "decoder";
    rope: norm;

    hparams {
        kq_scale: f32 = "attention.scale" or 1.0 / sqrt(head_dim);
        n_loops: usize = "num_loops" or 1;
        skip_norm: bool = "skip_loop_final_norm" or false;
        check n_loops > 0, "num_loops must not be 0";
    }

    tensors {
        rope_freqs?: vector [n_rot / 2];
    }

    graph {
        let x = token_embd[tokens];
        for pass in 0..n_loops {
            for layer {
                x += attend(rms_norm(x, attn_norm), factors = rope_freqs, scale = kq_scale);
                x += ffn(rms_norm(x, ffn_norm));
            }
            if pass + 1 < n_loops && !skip_norm {
                x = rms_norm(x, output_norm);
            }
        }
        output(rms_norm(x, output_norm))
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_loops: 2 }
}
