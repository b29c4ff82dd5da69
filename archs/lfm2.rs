//! LFM2: most layers use a gated short convolution; layers with key heads use attention with norms per query
//! and key head and optional sliding windows.

arch_macros::arch! {
    name: "lfm2";
    rope: neox;

    hparams {
        l_cache: usize = "shortconv.l_cache";
        check l_cache > 1, "shortconv.l_cache (the convolution length) must be at least 2";
        n_swa: usize = "attention.sliding_window" or 0;
        let recurrent = n_head_kv == 0;
    }

    tensors {
        token_embd:  embed  "token_embd"      [n_embd, n_vocab];
        output_norm: vector "token_embd_norm" [n_embd];
        output:      linear "output"          [n_embd -> n_vocab] or token_embd;
        ignore "dense_2"; // projection of the embedding models

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            if recurrent {
                conv_in:  linear "shortconv.in_proj"  [n_embd -> 3 * n_embd];
                conv:     vector "shortconv.conv"     [l_cache, n_embd];
                conv_out: linear "shortconv.out_proj" [n_embd -> n_embd];
            } else {
                use qk_norm_attention;
            }
            use gated_ffn;
        }
    }

    fn short_conv_mixer(x) {
        let bcx = conv_in(x);
        conv_out(bcx[n_embd..2 * n_embd] * short_conv(bcx[..n_embd] * bcx[2 * n_embd..], conv))
    }

    graph {
        let x = with_media(token_embd[tokens]);
        for layer {
            let h = rms_norm(x, attn_norm);
            x += if recurrent { short_conv_mixer(h) } else { attend(h, window = sliding(n_swa, n_swa > 0)) };
            x += ffn(rms_norm(x, ffn_norm));
        }
        output(rms_norm(x, output_norm))
    }

    checkpoint "Lfm2ForCausalLM" {
        l_cache = "conv_L_cache" or 3;
        n_head_kv = if "layer_types" == text("full_attention") { "num_key_value_heads" } else { 0 } or
            if contains("full_attn_idxs", il) { "num_key_value_heads" } else { 0 };
        n_ff = if first("block_auto_adjust_ff_dim", true) {
            first("block_multiple_of", 256) *
                int(1 + (int(first("block_ffn_dim_multiplier", 1.0) * int(2 * first("block_ff_dim", "intermediate_size") / 3)) - 1) /
                    first("block_multiple_of", 256))
        } else {
            first("block_ff_dim", "intermediate_size")
        };
        rms_norm_eps = "norm_eps" or 0.00001;
        rope_freq_base = "rope_parameters.rope_theta" or "rope_theta" or 1000000.0;
        check first("conv_bias", false) == false, "conv_bias is not supported";
        token_embd <- "model.embed_tokens";
        output_norm <- "model.embedding_norm";
        output <- "lm_head";
        layer {
            attn_norm <- ".operator_norm";
            ffn_norm <- ".ffn_norm";
            conv_in <- ".conv.in_proj";
            conv <- ".conv.conv" squeeze;
            conv_out <- ".conv.out_proj";
            wo <- ".self_attn.out_proj";
            q_norm <- ".self_attn.q_layernorm";
            k_norm <- ".self_attn.k_layernorm";
            gate <- ".feed_forward.w1";
            up <- ".feed_forward.w3";
            down <- ".feed_forward.w2";
        }
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, l_cache: 3 }
}
