//! Gated feed-forward network and, in layers with experts, experts in parallel. Each has its own norms before
//! and after it.

fragment! {
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

    fn ffn_and_experts(x: [n_embd, T]) {
        let y = ffn(rms_norm(x, ffn_norm), act = gelu);
        if has(router_scale) {
            let scores = router(rms_norm(x) / sqrt(n_embd) * router_scale);
            let exps = routed(rms_norm(x, exps_norm), scores = scores, gate_up = gate_up_exps, act = gelu);
            y = rms_norm(y, mlp_post_norm) + rms_norm(exps, exps_post_norm);
        }
        y
    }
}
