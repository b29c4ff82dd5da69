//! OLMoE: RMS norms over all query heads and over all key heads, and softmax routing with unnormalized
//! weights.

arch_macros::arch! {
    name: "olmoe";
    rope: neox;

    tensors {
        use untied_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use full_qk_norm_attention, experts;
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(rms_norm(x, attn_norm));
            x += ffn(rms_norm(x, ffn_norm));
        }
        output(rms_norm(x, output_norm))
    }

    fn ffn(h) {
        routed(h, norm_weights = false)
    }

    checkpoint "OlmoeForCausalLM" {
        check first("norm_topk_prob", false) == false, "norm_topk_prob must be false for this architecture";
        check !given("clip_qkv"), "clip_qkv is not supported";
        attn_norm <- ".input_layernorm";
        ffn_norm <- ".post_attention_layernorm";
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2 }
}
