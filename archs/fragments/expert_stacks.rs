//! The matrices of gated experts, which take vectors of the size `space` to `width` and back. Their router is the declaration's.

fragment! {
    options(width = n_ff, space = n_embd);

    tensors {
        gate_exps: experts "ffn_gate_exps" [space -> width; n_expert];
        up_exps:   experts "ffn_up_exps"   [space -> width; n_expert];
        down_exps: experts "ffn_down_exps" [width -> space; n_expert];
    }

    fn routed(x, scores = router(x), gate_up?, act = silu, gating = softmax, norm_weights = true, scale?, selection?,
              selection_bias?, weigh_input?, n_groups?, n_groups_used?, limit?, act_limit?, squash?, up_squash?, up_offset?,
              ids?) {
        moe(x, router = scores, gate = gate_exps, up = up_exps, gate_up = gate_up, down = down_exps, act = act,
            gating = gating, n_used = n_expert_used, norm_weights = norm_weights, scale = scale, selection = selection,
            selection_bias = selection_bias, weigh_input = weigh_input, n_groups = n_groups, n_groups_used = n_groups_used,
            limit = limit, act_limit = act_limit, squash = squash, up_squash = up_squash, up_offset = up_offset,
            ids = ids)
    }
}
