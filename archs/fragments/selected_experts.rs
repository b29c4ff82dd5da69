//! Experts chosen as the file says, by scores to which a bias is added for the choice alone.

fragment! {
    options(width = n_ff_exp, usual_gating = 1);

    tensors {
        use experts(width = width), expert_routing(usual_gating = usual_gating);
        probs_bias: raw "exp_probs_b.bias" [n_expert];
    }

    fn chosen(x, act = silu, limit?, act_limit?, up_offset?) {
        routed_as_said(x, act = act, selection_bias = probs_bias, limit = limit, act_limit = act_limit, up_offset = up_offset)
    }
}
