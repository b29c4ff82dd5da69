//! MiniMax M3: RMS norms on each query and key head, partial rotation, the clamped gate of gpt-oss in dense leading layers, experts and the
//! shared one. Attention sees everything: the blocks of positions that the published model leaves out of long contexts are not left out.

arch_macros::arch! {
    name: "minimax-m3";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        n_dense: usize = "leading_dense_block_count" or 0;
        n_ff_exp: [usize] = "expert_feed_forward_length";
        n_shared: usize = "expert_shared_count";
    }

    tensors {
        use own_output;
        // What chooses blocks of positions.
        ignore "indexer.q_proj";
        ignore "indexer.k_proj";
        ignore "indexer.q_norm";
        ignore "indexer.k_norm";

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use qk_norm_attention;
            if il < n_dense {
                use gated_ffn;
            } else {
                use experts(width = n_ff_exp), expert_routing(usual_gating = 2), shared_experts(width = n_ff_exp * n_shared);
                probs_bias: raw "exp_probs_b.bias" [n_expert];
            }
        }
    }

    // With the limit of the published model: its files do not hold it.
    fn clamped(gates, ups) {
        gelu_quick(clamp(gates, -1000000000.0, 7.0)) * (clamp(ups, -7.0, 7.0) + 1.0)
    }

    fn chosen(h) {
        moe(h, router = router(h), gate = gate_exps, up = up_exps, down = down_exps, act = gelu_quick, gating = gating,
            n_used = n_expert_used, norm_weights = norm_weights, scale = weights_scale, selection_bias = probs_bias,
            n_groups = n_group, n_groups_used = n_group_used, limit = 7.0, up_offset = 1.0)
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(rms_norm(x, attn_norm, eps));
            let h = rms_norm(x, ffn_norm, eps);
            if il < n_dense {
                x += down(clamped(gate(h), up(h)));
            } else {
                x += chosen(h) + down_shexp(clamped(gate_shexp(h), up_shexp(h)));
            }
        }
        output(rms_norm(x, output_norm, eps))
    }

    test {
        n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_dense: 1, n_ff_exp: 384, n_shared: 1, n_expert: 2,
        n_expert_used: 2
    }
}
