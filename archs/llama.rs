//! Llama 1 to 3, Mistral, Mixtral, and many models that share their graph: grouped-query attention and
//! SwiGLU, dense or with experts.

arch_macros::arch! {
    name: "llama";
    rope: norm;

    hparams {
        kq_scale: f32 = "attention.scale" or 1.0 / sqrt(head_dim);
    }

    tensors {
        use tied_output;
        use rope_factors;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention;
            if n_expert == 0 {
                use gated_ffn;
            } else {
                use experts;
                override gate_exps?: experts "ffn_gate_exps" [n_embd -> n_ff; n_expert];
            }
        }
    }

    graph {
        let x = with_media(token_embd[tokens]);
        for layer {
            x += attend(rms_norm(x, attn_norm), factors = rope_freqs, short = rope_short, long = rope_long,
                        scale = kq_scale);
            x += ffn_or_experts(rms_norm(x, ffn_norm));
        }
        output(rms_norm(x, output_norm))
    }

    fn ffn_or_experts(h) {
        if n_expert == 0 { ffn(h) } else { routed(h) }
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2 }
}
