//! GLM 4.5 to 4.7: dense leading layers, then experts selected with a bias beside shared ones; partial rotation, and in
//! the large model RMS norms on each query and key head.

arch_macros::arch! {
    name: "glm4moe";
    rope: neox or mrope;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        n_ff_exp: [usize] = "expert_feed_forward_length" or n_ff / n_expert_used;
    }

    tensors {
        use tied_output;

        layer {
            attn_norm, post_norm: vector "attn_norm", "post_attention_norm" [n_embd];
            use self_attention, optional_qk_norms, leading_dense(usual_gating = 2);
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm, eps);
            let q = normed_queries(heads(wq(h), n_head));
            let k = normed_keys(heads(wk(h), n_head_kv));
            x += wo(attention(rope(q), rope(k), heads(wv(h), n_head_kv)));
            x += ffn_or_experts(rms_norm(x, post_norm, eps));
        }
        output(rms_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, n_shared: 1 }
}
