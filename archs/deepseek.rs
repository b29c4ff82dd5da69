//! DeepSeek MoE (first generation): dense leading layers, then fine-grained experts with unnormalized softmax
//! weights, plus shared experts.

arch_macros::arch! {
    name: "deepseek";
    rope: norm;

    hparams {
        n_dense: usize = "leading_dense_block_count" or 0;
        n_ff_exp: [usize] = "expert_feed_forward_length";
        n_shared: usize = "expert_shared_count";
        weights_scale: f32 = "expert_weights_scale" or 1.0;
    }

    tensors {
        use tied_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention;
            if il < n_dense {
                use gated_ffn;
            } else {
                use experts(width = n_ff_exp);
                use shared_experts(width = n_ff_exp * n_shared);
            }
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(rms_norm(x, attn_norm));
            let h = rms_norm(x, ffn_norm);
            if il < n_dense {
                x += ffn(h);
            } else {
                x += routed(h, norm_weights = false, scale = weights_scale) + shared_experts(h);
            }
        }
        output(rms_norm(x, output_norm))
    }

    test {
        n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, n_ff_exp: 384,
        n_shared: 1
    }
}
