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

    checkpoint "T5ForConditionalGeneration", "T5WithLMHeadModel", "MT5ForConditionalGeneration" {
        n_ctx_train = "n_positions" or 512;
        n_embd = "d_model";
        n_layer = "num_layers";
        n_layer_dec = "num_decoder_layers" or n_layer;
        n_head = "num_heads";
        n_head_kv = n_head;
        n_ff = "d_ff";
        head_dim = "d_kv";
        head_dim_v = "d_kv";
        n_buckets = "relative_attention_num_buckets" or 32;
        rms_norm_eps = "layer_norm_epsilon" or 0.000001;
        "decoder_start_token_id" = "decoder_start_token_id" or 0;
        check first("relative_attention_max_distance", 128) == 128, "relative_attention_max_distance must be 128";
        check first("feed_forward_proj", text("relu")) == text("relu") || first("feed_forward_proj", text("relu")) == text("gated-gelu"),
              "feed_forward_proj must be relu or gated-gelu";
        ignore "encoder.embed_tokens.", "decoder.embed_tokens.", ".EncDecAttention.relative_attention_bias.weight";
        token_embd <- "shared" or "encoder.embed_tokens";
        enc_norm <- "encoder.final_layer_norm";
        dec_norm <- "decoder.final_layer_norm";
        // The class divides the results of a tied output by the square root of the width.
        output <- "lm_head" times if first("scale_decoder_outputs", "tie_word_embeddings", true) { 1.0 / sqrt(n_embd) } else { 1.0 } or
            "shared" times if first("scale_decoder_outputs", "tie_word_embeddings", true) { 1.0 / sqrt(n_embd) } else { 1.0 };
        layer enc "encoder.block.{}" {}
        layer dec "decoder.block.{}" {
            cross_norm <- ".layer.1.layer_norm";
            cross_q <- ".layer.1.EncDecAttention.q";
            cross_k <- ".layer.1.EncDecAttention.k";
            cross_v <- ".layer.1.EncDecAttention.v";
            cross_o <- ".layer.1.EncDecAttention.o";
        }
        // Blocks of the decoder have a third layer, and blocks of the encoder have two.
        layer {
            attn_norm <- ".layer.0.layer_norm";
            rel_b <- ".layer.0.SelfAttention.relative_attention_bias";
            wq <- ".layer.0.SelfAttention.q";
            wk <- ".layer.0.SelfAttention.k";
            wv <- ".layer.0.SelfAttention.v";
            wo <- ".layer.0.SelfAttention.o";
            ffn_norm <- ".layer.2.layer_norm" or ".layer.1.layer_norm";
            gate <- ".layer.2.DenseReluDense.wi_0" or ".layer.1.DenseReluDense.wi_0";
            up <- ".layer.2.DenseReluDense.wi_1" or ".layer.2.DenseReluDense.wi" or ".layer.1.DenseReluDense.wi_1" or
                ".layer.1.DenseReluDense.wi";
            down <- ".layer.2.DenseReluDense.wo" or ".layer.1.DenseReluDense.wo";
        }
    }
}
