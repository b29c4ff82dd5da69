//! Dense leading layers, followed by layers with experts selected with a bias and optional shared experts.

fragment! {
    options(default_gating = 1);

    hparams {
        n_dense: usize = "leading_dense_block_count" or 0;
        n_ff_exp: [usize] = "expert_feed_forward_length";
        n_shared: usize = "expert_shared_count";
        let has_experts = il >= n_dense;
        let has_shared = has_experts && n_shared > 0;
    }

    tensors {
        if has_experts {
            use selected_experts(default_gating = default_gating);
        } else {
            use gated_ffn;
        }
        if has_shared {
            use shared_experts(width = n_ff_exp * n_shared);
        }
    }

    fn ffn_or_experts(x: [n_embd, T]) {
        if has_experts {
            let y = selected_experts(x);
            if has_shared {
                y += shared_experts(x);
            }
            y
        } else {
            ffn(x)
        }
    }
}
