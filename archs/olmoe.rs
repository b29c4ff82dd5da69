//! OLMoE: RMS norms over all query and all key heads together, softmax routing with unnormalized weights.

arch_macros::arch! {
    name: "olmoe";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
    }

    tensors {
        use own_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention;
            q_norm: vector "attn_q_norm" [n_head * head_dim];
            k_norm: vector "attn_k_norm" [n_head_kv * head_dim];
            use experts;
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm, eps);
            let q = rope(heads(rms_norm(wq(h), q_norm, eps), n_head));
            let k = rope(heads(rms_norm(wk(h), k_norm, eps), n_head_kv));
            let v = heads(wv(h), n_head_kv);
            x += wo(attention(q, k, v));
            x += ffn(rms_norm(x, ffn_norm, eps));
        }
        output(rms_norm(x, output_norm, eps))
    }

    fn ffn(h) {
        routed(h, norm_weights = false)
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2 }
}
