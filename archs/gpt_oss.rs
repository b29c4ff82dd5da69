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

    test {
        n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, n_ff_exp: 384,
        n_swa: 32
    }
}
