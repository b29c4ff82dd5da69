//! GLM 4.5 to 4.7: dense leading layers, then experts selected with a bias beside shared ones; partial rotation, and in
//! the large model RMS norms on each query and key head.

arch_macros::arch! {
    name: "glm4moe";
    rope: neox or mrope;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        n_dense: usize = "leading_dense_block_count" or 0;
        n_ff_exp: [usize] = "expert_feed_forward_length" or n_ff / n_expert_used;
        n_shared: usize = "expert_shared_count";
        let has_experts = il >= n_dense;
        let has_shared = has_experts && n_shared > 0;
    }

    tensors {
        use tied_output;

        layer {
            attn_norm: vector "attn_norm" [n_embd];
            use self_attention;
            q_norm?:   vector "attn_q_norm"         [head_dim];
            k_norm?:   vector "attn_k_norm"         [head_dim];
            post_norm: vector "post_attention_norm" [n_embd];
            if has_experts {
                use experts(width = n_ff_exp), expert_routing(usual_gating = 2);
                probs_bias: raw "exp_probs_b.bias" [n_expert];
            } else {
                use gated_ffn;
            }
            if has_shared {
                use shared_experts(width = n_ff_exp * n_shared);
            }
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm, eps);
            let q = heads(wq(h), n_head);
            let k = heads(wk(h), n_head_kv);
            let v = heads(wv(h), n_head_kv);
            if has(q_norm) {
                q = rms_norm(q, q_norm, eps);
            }
            if has(k_norm) {
                k = rms_norm(k, k_norm, eps);
            }
            x += wo(attention(rope(q), rope(k), v));
            x += ffn_or_experts(rms_norm(x, post_norm, eps));
        }
        output(rms_norm(x, output_norm, eps))
    }

    fn ffn_or_experts(h) {
        if has_experts {
            let y = routed_as_said(h, selection_bias = probs_bias);
            if has_shared { y += shared(h); }
            y
        } else {
            ffn(h)
        }
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, n_shared: 1 }
}
