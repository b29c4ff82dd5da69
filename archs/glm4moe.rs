//! GLM 4.5 to 4.7: partial rotary positions; dense leading layers, then experts selected with a bias, plus
//! shared experts. The large model has RMS norms per query and key head.

arch_macros::arch! {
    name: "glm4moe";
    rope: neox or mrope;

    hparams {
        n_ff_exp: [usize] = "expert_feed_forward_length" or n_ff / n_expert_used;
    }

    tensors {
        use tied_output;

        layer {
            attn_norm, post_norm: vector "attn_norm", "post_attention_norm" [n_embd];
            use optional_qk_norm_attention, leading_dense(default_gating = 2), mtp_layer;
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(rms_norm(x, attn_norm));
            x += ffn_or_experts(rms_norm(x, post_norm));
        }
        output(rms_norm(x, output_norm))
    }

    mtp {
        mtp_logits(layer(mtp_input()))
    }

    checkpoint "Glm4MoeForCausalLM" {
        n_rot = int(head_dim * first("rope_parameters.partial_rotary_factor", "partial_rotary_factor", 0.5));
        n_dense = "first_k_dense_replace" or 1;
        n_ff_exp = "moe_intermediate_size";
        n_shared = "n_shared_experts" or 1;
        gating_func = 2;
        norm_weights = "norm_topk_prob" or true;
        weights_scale = "routed_scaling_factor" or 1.0;
        n_group = "n_group" or 1;
        n_group_used = "topk_group" or 1;
        attn_norm <- ".input_layernorm";
        post_norm <- ".post_attention_layernorm";
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, n_shared: 1 }
}
