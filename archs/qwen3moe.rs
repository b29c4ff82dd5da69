//! Qwen3 with experts: RMS norms per query and key head, and softmax routing with normalized weights.

arch_macros::arch! {
    name: "qwen3moe";
    rope: neox;

    hparams {
        n_ff_exp: [usize] = "expert_feed_forward_length" or n_ff / n_expert_used;
    }

    tensors {
        use tied_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use qk_norm_attention;
            use experts(width = n_ff_exp);
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(rms_norm(x, attn_norm));
            x += routed(rms_norm(x, ffn_norm));
        }
        output(rms_norm(x, output_norm))
    }

    checkpoint "Qwen3MoeForCausalLM" {
        n_ff_exp = "moe_intermediate_size";
        rope_freq_base = "rope_parameters.rope_theta" or "rope_theta" or 1000000.0;
        check first("norm_topk_prob", false) == true, "norm_topk_prob must be true for this architecture";
        check first("decoder_sparse_step", 1) == 1, "decoder_sparse_step must be 1: all layers have experts";
        attn_norm <- ".input_layernorm";
        ffn_norm <- ".post_attention_layernorm";
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2 }
}
