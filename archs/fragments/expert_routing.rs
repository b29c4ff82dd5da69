//! Expert routing configured by the file: gating function, groups, normalization, and scale of the weights.
//! Use together with `experts`.

fragment! {
    options(default_gating = 1);
    needs(routed(x));

    hparams {
        gating_func: usize = "expert_gating_func" or 0;
        check gating_func <= 4, "expert_gating_func must be 1 to 4";
        // A missing key or 0 selects the architecture's default: 1 is softmax, 2 is sigmoid.
        let gating = if gating_func == 0 { default_gating } else { gating_func };
        norm_weights: bool = "expert_weights_norm" or false;
        // DeepSeek V2 has softmax and up to 160 experts; larger models have sigmoid.
        warn given(gating_func) || gating != 1 || n_expert <= 160,
             "expert_gating_func is missing: the router uses softmax, but published models of this size use sigmoid (2)";
        weights_scale: f32 = "expert_weights_scale" or 1.0;
        n_group: usize = "expert_group_count" or 1;
        n_group_used: usize = "expert_group_used_count" or 1;
        check n_group <= 1 || n_group_used > 0, "expert_group_used_count must not be 0 if expert_group_count is set";
    }

    fn routed_by_keys(x: [_, T], ..) {
        routed(x, gating = gating, norm_weights = norm_weights, scale = weights_scale, n_groups = n_group,
               n_groups_used = n_group_used, ..)
    }
}
