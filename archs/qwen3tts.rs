//! Qwen3-TTS talker: the language model of Qwen3-VL with an output projection for speech codes only, which
//! are the last 3072 tokens of the vocabulary.

arch_macros::arch! {
    name: "qwen3tts";
    like: "qwen3vl";

    hparams {
        without n_deep;
        check n_vocab >= 3072, "vocab_size must be at least 3072, the number of speech codes";
    }

    tensors {
        without output;
        codec_head?: linear "output" [n_embd -> 3072];
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm);
            let q = rope(rms_norm(heads(wq(h), n_head), q_norm));
            let k = rope(rms_norm(heads(wk(h), n_head_kv), k_norm));
            let v = heads(wv(h), n_head_kv);
            x += wo(attention(q, k, v));
            let h = rms_norm(x, ffn_norm);
            x += down(silu(gate(h)) * up(h));
        }
        let h = rms_norm(x, output_norm);
        if has(codec_head) { pad_logits(codec_head(h), n_vocab) } else { token_embd(h) }
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 3072 }
}
