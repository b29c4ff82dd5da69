//! MiniMax M2: RMS norms over all query and all key heads together, partial rotation, experts selected with a bias.

arch_macros::arch! {
    name: "minimax-m2";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        gating_func: usize = "expert_gating_func" or 1;
        check gating_func <= 4, "expert_gating_func is one of 1 to 4";
    }

    tensors {
        use own_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention;
            q_norm: vector "attn_q_norm" [n_head * head_dim];
            k_norm: vector "attn_k_norm" [n_head_kv * head_dim];
            use experts;
            probs_bias: raw "exp_probs_b.bias" [n_expert];
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
            x += routed(rms_norm(x, ffn_norm, eps), gating = gating_func, selection_bias = probs_bias);
        }
        output(rms_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2 }
}
