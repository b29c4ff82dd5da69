//! PLM: multi-head latent attention and a feed-forward network of squared ReLUs without a gate.

arch_macros::arch! {
    name: "plm";
    rope: norm;

    tensors {
        use tied_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use latent_attention(low_rank_queries = false), plain_ffn; // a query rank in the file is ignored
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend_latent(rms_norm(x, attn_norm));
            x += ffn(rms_norm(x, ffn_norm), act = relu_sqr);
        }
        output(rms_norm(x, output_norm))
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, kv_rank: 512, n_rot: 64 }
}
