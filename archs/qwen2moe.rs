//! Qwen1.5 and Qwen2 with experts: unnormalized routing weights, and a shared expert with its own gate.

arch_macros::arch! {
    name: "qwen2moe";
    rope: neox;

    hparams {
        n_ff_exp: [usize] = "expert_feed_forward_length" or n_ff / n_expert_used;
        n_ff_shexp: [usize] = "expert_shared_feed_forward_length" or n_ff;
    }

    tensors {
        use untied_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention, experts(width = n_ff_exp), gated_shared_expert;
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(rms_norm(x, attn_norm));
            let h = rms_norm(x, ffn_norm);
            x += routed(h, norm_weights = false) + gated_shared_expert(h);
        }
        output(rms_norm(x, output_norm))
    }

    checkpoint "Qwen2MoeForCausalLM" {
        n_ff_exp = "moe_intermediate_size";
        n_ff_shexp = "shared_expert_intermediate_size";
        check first("norm_topk_prob", false) == false, "norm_topk_prob must be false for this architecture";
        check first("decoder_sparse_step", 1) == 1, "decoder_sparse_step must be 1: all layers have experts";
        attn_norm <- ".input_layernorm";
        ffn_norm <- ".post_attention_layernorm";
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2 }
}
