//! Gated experts and their router.

fragment! {
    options(width = n_ff);

    tensors {
        router:    linear  "ffn_gate_inp"  [n_embd -> n_expert];
        gate_exps: experts "ffn_gate_exps" [n_embd -> width; n_expert];
        up_exps:   experts "ffn_up_exps"   [n_embd -> width; n_expert];
        down_exps: experts "ffn_down_exps" [width -> n_embd; n_expert];
    }

    fn routed(x, act = silu, gating = softmax, norm_weights = true, scale?, selection_bias?, n_groups?, n_groups_used?, limit?,
              act_limit?, ids?) {
        moe(x, router = router(x), gate = gate_exps, up = up_exps, down = down_exps, act = act, gating = gating,
            n_used = n_expert_used, norm_weights = norm_weights, scale = scale, selection_bias = selection_bias,
            n_groups = n_groups, n_groups_used = n_groups_used, limit = limit, act_limit = act_limit,
            ids = ids)
    }
}
