//! Ling 1: softmax routing and shared experts in every layer. The head size equals the number of rotated
//! dimensions.

arch_macros::arch! {
    name: "bailingmoe";
    rope: norm;

    hparams {
        n_ff_exp: [usize] = "expert_feed_forward_length";
        n_shared: usize = "expert_shared_count";
        weights_scale: f32 = "expert_weights_scale" or 1.0;
        norm_weights: bool = "expert_weights_norm" or false;
    }

    tensors {
        use untied_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention;
            use experts(width = n_ff_exp);
            use shared_experts(width = n_ff_exp * n_shared);
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(rms_norm(x, attn_norm), scale = 1.0 / sqrt(n_rot));
            let h = rms_norm(x, ffn_norm);
            x += routed(h, norm_weights = norm_weights, scale = weights_scale) + shared_experts(h);
        }
        output(rms_norm(x, output_norm))
    }

    test {
        n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, n_ff_exp: 384,
        n_shared: 1
    }
}
