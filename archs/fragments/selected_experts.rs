//! Experts whose selection, but not weighting, uses a bias (DeepSeek-V3, arXiv 2412.19437). The file
//! configures gating, groups, and weights.

fragment! {
    options(width = n_ff_exp, default_gating = 1);

    tensors {
        use experts(width = width), expert_routing(default_gating = default_gating);
        probs_bias: raw "exp_probs_b.bias" [n_expert];
    }

    checkpoint {
        probs_bias <- ".mlp.gate.e_score_correction_bias";
    }

    fn selected_experts(x: [n_embd, T], ..) {
        routed_by_keys(x, selection_bias = probs_bias, ..)
    }
}
