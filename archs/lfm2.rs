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
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm);
            x += if recurrent { short_conv_mixer(h) } else { attend(h, window = sliding(n_swa, n_swa > 0)) };
            x += ffn(rms_norm(x, ffn_norm));
        }
        output(rms_norm(x, output_norm))
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, l_cache: 3 }
}
