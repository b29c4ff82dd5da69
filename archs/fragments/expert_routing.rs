//! Routing of experts by the keys of the file: gating function, groups, normalization and scale of the weights. Goes with `experts`.

fragment! {
    options(usual_gating = 1);
    needs(routed(x));

    hparams {
        gating_func: usize = "expert_gating_func" or 0;
        check gating_func <= 4, "expert_gating_func is one of 1 to 4";
        // Files that say nothing, or 0, mean what is usual for the architecture: 1 is softmax, 2 sigmoid.
        let gating = if gating_func == 0 { usual_gating } else { gating_func };
        norm_weights: bool = "expert_weights_norm" or false;
        weights_scale: f32 = "expert_weights_scale" or 1.0;
        n_group: usize = "expert_group_count" or 1;
        n_group_used: usize = "expert_group_used_count" or 1;
        check n_group <= 1 || n_group_used > 0, "expert_group_used_count is 0, but expert_group_count is not";
    }

    fn routed_by_keys(x, ..) {
        routed(x, gating = gating, norm_weights = norm_weights, scale = weights_scale, n_groups = n_group,
               n_groups_used = n_group_used, ..)
    }
}
