//! Ling 2 and Ring 2: dense leading layers, then group-limited sigmoid routing with a selection bias, plus
//! shared experts. RMS norms per query and key head.

arch_macros::arch! {
    name: "bailingmoe2";
    rope: neox;

    hparams {
        n_dense: usize = "leading_dense_block_count" or 0;
        n_ff_exp: [usize] = "expert_feed_forward_length";
        n_ff_shexp: [usize] = "expert_shared_feed_forward_length" or n_ff_exp;
        n_shared: usize = "expert_shared_count";
        gating_func: usize = "expert_gating_func";
    }

    tensors {
        use untied_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use qk_norm_attention;
            if il < n_dense {
                use gated_ffn;
            } else {
                use experts(width = n_ff_exp), expert_routing;
                probs_bias?: raw "exp_probs_b.bias" [n_expert];
                use shared_experts(width = n_ff_shexp * n_shared);
            }
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(rms_norm(x, attn_norm));
            x += ffn_or_experts(rms_norm(x, ffn_norm));
        }
        output(rms_norm(x, output_norm))
    }

    fn ffn_or_experts(h) {
        if il < n_dense {
            ffn(h)
        } else {
            routed_by_keys(h, selection_bias = probs_bias) + shared_experts(h)
        }
    }

    checkpoint {
        attn_norm <- ".input_layernorm";
        ffn_norm <- ".post_attention_layernorm";
        probs_bias <- ".mlp.gate.e_score_correction_bias";
    }

    test {
        n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, n_ff_exp: 384,
        n_shared: 1, gating_func: 2
    }
}
