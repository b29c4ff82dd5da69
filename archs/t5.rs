//! T5, Flan-T5, and related models: an encoder over the whole prompt and a decoder with cross-attention.
//! Relative position biases instead of position embeddings.

arch_macros::arch! {
    name: "t5";
    like: "t5encoder";
    attention: causal;

    hparams {
        n_layer_dec: usize = "decoder_block_count" or n_layer;
    }

    tensors {
        dec_norm: vector "dec.output_norm" [n_embd];
        output:   linear "output"          [n_embd -> n_vocab] or token_embd;

        layer dec "dec.blk" n_layer_dec {
            use relative_attention;
            cross_norm: vector "cross_attn_norm" [n_embd];
            cross_q:    linear "cross_attn_q"    [n_embd -> n_head * head_dim];
            cross_k:    linear "cross_attn_k"    [n_embd -> n_head_kv * head_dim];
            cross_v:    linear "cross_attn_v"    [n_embd -> n_head_kv * head_dim_v];
            cross_o:    linear "cross_attn_o"    [n_head * head_dim_v -> n_embd];
            ignore "cross_attn_rel_b";
        }
    }

    encoder {
        let x = token_embd[tokens];
        for enc {
            x += attend(rms_norm(x, attn_norm));
            x += ffn(rms_norm(x, ffn_norm));
        }
        rms_norm(x, enc_norm)
    }

    graph {
        let x = token_embd[tokens];
        for dec {
            x += attend(rms_norm(x, attn_norm));
            let q = heads(cross_q(rms_norm(x, cross_norm)), n_head);
            let k = heads(cross_k(encoded), n_head_kv);
            x += cross_o(cross_attention(q, k, heads(cross_v(encoded), n_head_kv), scale = 1.0));
            x += ffn(rms_norm(x, ffn_norm));
        }
        output(rms_norm(x, dec_norm))
    }
}
