//! Experts chosen as the file says, by scores to which a bias is added for the choice alone.

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
