//! Weights of gated experts that project vectors of size `space` to `width` and back. The declaration
//! provides a `router` or `scores`.

fragment! {
    options(width = n_ff, space = n_embd);

    tensors {
        gate_exps: experts "ffn_gate_exps" [space -> width; n_expert];
        up_exps:   experts "ffn_up_exps"   [space -> width; n_expert];
        down_exps: experts "ffn_down_exps" [width -> space; n_expert];
    }

    checkpoint {
        gate_exps <- stack ".mlp.experts.{}.gate_proj" or ".mlp.experts.gate_up_proj" split 0 / 2;
        up_exps <- stack ".mlp.experts.{}.up_proj" or ".mlp.experts.gate_up_proj" split 1 / 2;
        down_exps <- stack ".mlp.experts.{}.down_proj" or ".mlp.experts.down_proj";
    }

    fn routed(x: [space, T], scores = router(x), act = silu, gating = softmax, norm_weights = true, ..) {
        moe(x, router = scores, gate = gate_exps, up = up_exps, down = down_exps, act = act, gating = gating,
            n_used = n_expert_used, norm_weights = norm_weights, ..)
    }
}
