//! Qwen 1: a fused query, key, and value projection with bias, and multi-head attention. The file's
//! feed-forward length counts the gate and up projections together.

arch_macros::arch! {
    name: "qwen";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
    }

    tensors {
        use untied_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention, gated_ffn(width = n_ff / 2);
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(rms_norm(x, attn_norm, eps));
            x += ffn(rms_norm(x, ffn_norm, eps));
        }
        output(rms_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
