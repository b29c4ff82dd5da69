//! EmbeddingGemma: Gemma 3 as an encoder with symmetric windows and two projections after pooling.

arch_macros::arch! {
    name: "gemma-embedding";
    like: "gemma3";
    attention: bidirectional;
    result: embeddings;

    hparams {
        n_swa: usize = "attention.sliding_window";
        n_dense: usize = "dense_2_feat_out" or 0;
    }

    tensors {
        dense_2?: linear "dense_2" [n_embd -> n_dense];
        dense_3?: linear "dense_3" [n_dense -> n_embd];
    }

    graph {
        let x = token_embd[tokens] * sqrt(n_embd);
        for layer {
            let h = rms_norm(x, attn_norm);
            let attn = attend(h, base = rope_base, rope_scale = rope_scale, scale = kq_scale,
                              window = symmetric(n_swa, is_swa));
            x += rms_norm(attn, attn_post_norm);
            x += rms_norm(ffn(rms_norm(x, ffn_norm), act = gelu), ffn_post_norm);
        }
        output(rms_norm(x, output_norm))
    }

    embedding {
        if has(dense_2) && has(dense_3) { dense_3(dense_2(pooled)) } else { pooled }
    }
}
