//! Gated feed-forward network and, in layers with experts, experts in parallel. Each has its own norms before
//! and after it.

fragment! {
    needs(eps: f32);

    tensors {
        ffn_norm: vector [n_embd];
        use gated_ffn;
        router_scale?: raw "ffn_gate_inp.scale" [n_embd];
        if has(router_scale) {
            router:         linear "ffn_gate_inp"    [n_embd -> n_expert];
            mlp_post_norm:  vector "post_ffw_norm_1" [n_embd];
            exps_norm:      vector "pre_ffw_norm_2"  [n_embd];
            exps_post_norm: vector "post_ffw_norm_2" [n_embd];
            use fused_expert_stacks;
        }
    }

    fn ffn_and_experts(x) {
        let y = ffn(rms_norm(x, ffn_norm, eps), act = gelu);
        if has(router_scale) {
            let scores = router(rms_norm(x, eps) / sqrt(n_embd) * router_scale);
            let exps = routed(rms_norm(x, exps_norm, eps), scores = scores, gate_up = gate_up_exps, act = gelu);
            y = rms_norm(y, mlp_post_norm, eps) + rms_norm(exps, exps_post_norm, eps);
        }
        y
    }
}
