//! T5 encoder for embeddings: relative position biases instead of position embeddings, and a feed-forward network. The
//! network has a GELU gate, or ReLU if the file has no gate.

arch_macros::arch! {
    name: "t5encoder";
    rope: none;
    attention: bidirectional;

    hparams {
        n_buckets: usize = "attention.relative_buckets_count";
    }

    tensors {
        token_embd: embed  "token_embd"      [n_embd, n_vocab];
        enc_norm:   vector "enc.output_norm" [n_embd];
        ignore "output";

        layer enc "enc.blk" n_layer {
            use relative_attention;
        }
    }

    graph {
        let x = token_embd[tokens];
        for enc {
            x += attend(rms_norm(x, attn_norm));
            x += ffn(rms_norm(x, ffn_norm));
        }
        rms_norm(x, enc_norm)
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_buckets: 8 }
}
