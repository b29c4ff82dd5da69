//! Hunyuan A13B: softmax routing beside a shared expert in every layer; RMS norms on each query and key head after
//! rotation.

arch_macros::arch! {
    name: "hunyuan-moe";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        n_ff_shexp: [usize] = "expert_shared_feed_forward_length" or n_ff;
    }

    tensors {
        use tied_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention;
            q_norm: vector "attn_q_norm" [head_dim];
            k_norm: vector "attn_k_norm" [head_dim];
            use experts;
            use shared_experts(width = n_ff_shexp);
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm, eps);
            let q = rms_norm(rope(heads(wq(h), n_head)), q_norm, eps);
            let k = rms_norm(rope(heads(wk(h), n_head_kv)), k_norm, eps);
            let v = heads(wv(h), n_head_kv);
            x += wo(attention(q, k, v));
            let h = rms_norm(x, ffn_norm, eps);
            x += routed(h) + shared(h);
        }
        output(rms_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2 }
}
