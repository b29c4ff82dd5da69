//! AFMoE (Trinity): sliding-window attention with rotary positions; every fourth layer has full attention
//! without positions. Scaled embeddings, gated attention, and norms before and after each block. Dense
//! leading layers, then experts selected with a bias, plus shared experts.

arch_macros::arch! {
    name: "afmoe";
    rope: neox;

    hparams {
        warn given(norm_weights),
             "expert_weights_norm is missing: expert weights are not normalized, unlike in published models";
    }

    tensors {
        use tied_output, sliding_window(length = 0, period = 4);

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use qk_norm_attention;
            attn_gate: linear [n_embd -> n_head * head_dim_v];
            attn_post_norm, ffn_post_norm: vector "post_attention_norm", "post_ffw_norm" [n_embd];
            use leading_dense(default_gating = 2);
        }
    }

    graph {
        let x = token_embd[tokens] * sqrt(n_embd);
        for layer {
            let h = rms_norm(x, attn_norm);
            // Every fourth layer has no rotary positions, regardless of its window.
            let attn = attend_heads(h, rotated = (il + 1) % 4 != 0, base = rope_base, window = sliding(n_swa, is_swa));
            x += rms_norm(wo(attn * sigmoid(attn_gate(h))), attn_post_norm);
            x += rms_norm(ffn_or_experts(rms_norm(x, ffn_norm)), ffn_post_norm);
        }
        output(rms_norm(x, output_norm))
    }

    test {
        n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, n_ff_exp: 384,
        n_shared: 1
    }
}
