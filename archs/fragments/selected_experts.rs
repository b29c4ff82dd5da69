//! Experts selected by scores with a bias that counts for the selection alone (DeepSeek-V3, arXiv 2412.19437); gating, groups and weights
//! as the file says.

fragment! {
    options(width = n_ff_exp, usual_gating = 1);

    tensors {
        use experts(width = width), expert_routing(usual_gating = usual_gating);
        probs_bias: raw "exp_probs_b.bias" [n_expert];
    }

    fn selected_experts(x, ..) {
        routed_by_keys(x, selection_bias = probs_bias, ..)
    }
}
