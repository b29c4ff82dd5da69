//! Experts in an optional latent space of their own width, and optional shared experts at full width, with
//! soft-capped activations.

fragment! {
    needs(squash: f32, up_squash: f32, limited_glu(gate, up));

    hparams {
        n_ff_exp: [usize] = "expert_feed_forward_length";
        n_shared: usize = "expert_shared_count";
        latent: usize = "expert_latent_length" or 0;
        let n_latent = if latent > 0 { latent } else { n_embd };
    }

    tensors {
        router: linear "ffn_gate_inp" [n_embd -> n_expert];
        use expert_routing, expert_stacks(width = n_ff_exp, space = n_latent);
        probs_bias:  raw    "exp_probs_b.bias" [n_expert];
        gate_shexp?: linear "ffn_gate_shexp"   [n_embd -> n_ff_exp * max(n_shared, 1)];
        up_shexp?:   linear "ffn_up_shexp"     [n_embd -> n_ff_exp * max(n_shared, 1)];
        down_shexp?: linear "ffn_down_shexp"   [n_ff_exp * max(n_shared, 1) -> n_embd];
        if latent > 0 {
            to_latent:    linear "ffn_routed_down" [n_embd -> n_latent];
            latent_norm?: vector "ffn_routed_norm" [n_latent];
            from_latent:  linear "ffn_routed_up"   [n_latent -> n_embd];
        }
    }

    fn latent_experts(h: [n_embd, T]) {
        let z = if latent > 0 { to_latent(h) } else { h[..n_latent] };
        let y = routed_by_keys(z, scores = router(h), selection_bias = probs_bias, squash = squash, up_squash = up_squash);
        if latent > 0 && has(latent_norm) {
            y = rms_norm(y, latent_norm);
        }
        let y = if latent > 0 { from_latent(y) } else { y[..n_embd] };
        if has(gate_shexp) && has(up_shexp) && has(down_shexp) {
            y += down_shexp(limited_glu(gate_shexp(h), up_shexp(h)));
        }
        y
    }
}
