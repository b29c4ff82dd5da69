//! Spark 2.5: windowed and full layers by the file, a sigmoid gate per attention head, GELU gates.

arch_macros::arch! {
    name: "spark2_5";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
    }

    tensors {
        use tied_output, sliding_window;

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
            let attn = heads(attend_heads(h, base = rope_base, window = standard(n_swa, is_swa)), n_head);
            x += wo(merge(attn * heads(sigmoid(head_gate(h)), n_head)));
            x += ffn(rms_norm(x, ffn_norm, eps), act = gelu);
        }
        output(rms_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_swa: 32 }
}
