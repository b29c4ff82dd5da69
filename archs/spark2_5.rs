//! Spark 2.5: windowed and full layers by the file, a sigmoid gate per attention head, GELU gates.

arch_macros::arch! {
    name: "spark2_5";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        n_swa: usize = "attention.sliding_window";
        is_swa: pattern = "attention.sliding_window_pattern";
        rope_base_swa: f32 = "rope.freq_base_swa" or rope_freq_base;
        let rope_base = if is_swa { rope_base_swa } else { rope_freq_base };
        check n_swa > 0, "attention.sliding_window is not 0";
    }

    tensors {
        use tied_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention;
            head_gate: linear "attn_gate" [n_embd -> n_head];
            use gated_ffn;
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm, eps);
            let q = rope(heads(wq(h), n_head), base = rope_base);
            let k = rope(heads(wk(h), n_head_kv), base = rope_base);
            let v = heads(wv(h), n_head_kv);
            let a = heads(attention(q, k, v, window = standard(n_swa, is_swa)), n_head);
            x += wo(merge(a * heads(sigmoid(head_gate(h)), n_head)));
            x += ffn(rms_norm(x, ffn_norm, eps), act = gelu);
        }
        output(rms_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_swa: 32 }
}
