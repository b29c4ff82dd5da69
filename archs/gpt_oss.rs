//! gpt-oss: attention sinks, sliding windows in every other layer, biases in all projections, and experts
//! with a clamped gate. The weights are a softmax over the selected experts.

arch_macros::arch! {
    name: "gpt-oss";
    rope: neox;

    hparams {
        n_ff_exp: [usize] = "expert_feed_forward_length";
    }

    tensors {
        use untied_output, sliding_window(period = 2);

        layer {
            attn_norm: vector "attn_norm" [n_embd];
            use self_attention;
            sinks:     vector "attn_sinks"          [n_head];
            post_norm: vector "post_attention_norm" [n_embd];
            use experts(width = n_ff_exp);
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(rms_norm(x, attn_norm), base = rope_base, sinks = sinks, window = sliding(n_swa, is_swa));
            // Constants of the published model, not stored in files.
            x += routed(rms_norm(x, post_norm), act = gelu_quick, gating = softmax_weight, norm_weights = false,
                        limit = 7.0, up_offset = 1.0);
        }
        output(rms_norm(x, output_norm))
    }

    checkpoint "GptOssForCausalLM" {
        n_ff_exp = "intermediate_size";
        rope_freq_base = "rope_parameters.rope_theta" or "rope_theta" or 150000.0;
        n_swa = "sliding_window" or 128;
        swa_pattern = "layer_types" == text("sliding_attention") or 2;
        // The class always multiplies by a sigmoid of scaled values and ignores `hidden_act`.
        check first("hidden_act", text("silu")) == text("silu"), "hidden_act must be silu for this architecture";
        check first("swiglu_limit", 7.0) == 7.0, "swiglu_limit must be 7 for this architecture";
        layer {
            attn_norm <- ".input_layernorm";
            sinks <- ".self_attn.sinks";
            post_norm <- ".post_attention_layernorm";
            router <- ".mlp.router";
            gate_exps <- ".mlp.experts.gate_up_proj_blocks" every 0 / 2 or ".mlp.experts.gate_up_proj" transpose every 0 / 2;
            gate_exps.bias <- ".mlp.experts.gate_up_proj_bias" every 0 / 2;
            up_exps <- ".mlp.experts.gate_up_proj_blocks" every 1 / 2 or ".mlp.experts.gate_up_proj" transpose every 1 / 2;
            up_exps.bias <- ".mlp.experts.gate_up_proj_bias" every 1 / 2;
            down_exps <- ".mlp.experts.down_proj_blocks" or ".mlp.experts.down_proj" transpose;
            down_exps.bias <- ".mlp.experts.down_proj_bias";
        }
    }

    test {
        n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, n_ff_exp: 384,
        n_swa: 32
    }
}
