//! Whisper: speech recognition. The encoder reads a log-mel spectrogram, one row for two frames.
//! Text is written by `llama transcribe`.

arch_macros::arch! {
    name: "whisper";
    rope: none;
    attention: causal;

    hparams {
        n_mel: usize = "num_mel_bins";
        n_layer_dec: usize = "decoder_block_count" or n_layer;
        n_ctx_dec: usize = "decoder_context_length";
    }

    audio {
        rate: 16000;
        mel: whisper(n_mel);
        frames: 5 every 2;
        chunk: filled(n_ctx_train);
    }

    tensors {
        token_embd:    embed  "token_embd"        [n_embd, n_vocab];
        position_embd: embed  "position_embd"     [n_embd, n_ctx_dec];
        dec_norm:      norm   "dec.output_norm"   [n_embd];
        output:        linear "output"            [n_embd -> n_vocab] or token_embd;
        conv1:         linear "enc.conv1"         [n_mel * 3 -> n_embd];
        conv2:         linear "enc.conv2"         [n_embd * 3 -> n_embd];
        enc_positions: embed  "enc.position_embd" [n_embd, n_ctx_train];
        enc_norm:      norm   "enc.output_norm"   [n_embd];

        layer enc "enc.blk" n_layer {
            attn_norm, ffn_norm: norm [n_embd];
            use self_attention;
            use plain_ffn(activation = gelu_erf);
        }

        layer dec "dec.blk" n_layer_dec {
            attn_norm, ffn_norm: norm [n_embd];
            use self_attention;
            use plain_ffn(activation = gelu_erf);
            cross_norm: norm   "cross_attn_norm"   [n_embd];
            cross_q:    linear "cross_attn_q"      [n_embd -> n_head * head_dim];
            cross_k:    linear "cross_attn_k"      [n_embd -> n_head_kv * head_dim];
            cross_v:    linear "cross_attn_v"      [n_embd -> n_head_kv * head_dim_v];
            cross_o:    linear "cross_attn_output" [n_head * head_dim_v -> n_embd];
        }
    }

    encoder {
        // Both convolutions have a kernel of three frames, and the second one has a stride of 2. A row therefore
        // contains the five frames that its output depends on. In the input of the second convolution, frames
        // beyond the chunk are zero.
        let before = gelu_erf(conv1(frames[0..n_mel * 3])) * frames[n_mel * 5 + 1..n_mel * 5 + 2];
        let at = gelu_erf(conv1(frames[n_mel..n_mel * 4]));
        let behind = gelu_erf(conv1(frames[n_mel * 2..n_mel * 5])) * frames[n_mel * 5 + 3..n_mel * 5 + 4];
        let x = gelu_erf(conv2(concat(concat(before, at), behind))) + enc_positions[positions];
        for enc {
            x += attend(layer_norm(x, attn_norm), rotated = false);
            x += ffn(layer_norm(x, ffn_norm));
        }
        layer_norm(x, enc_norm)
    }

    graph {
        let x = token_embd[tokens] + position_embd[positions];
        for dec {
            x += attend(layer_norm(x, attn_norm), rotated = false);
            let q = heads(cross_q(layer_norm(x, cross_norm)), n_head);
            let k = heads(cross_k(encoded), n_head_kv);
            x += cross_o(cross_attention(q, k, heads(cross_v(encoded), n_head_kv)));
            x += ffn(layer_norm(x, ffn_norm));
        }
        output(layer_norm(x, dec_norm))
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_mel: 8, n_ctx_dec: 64 }
}
