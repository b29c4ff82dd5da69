//! Gated DeltaNet (arXiv 2412.06464): a delta rule with one decay per head after a short convolution. The
//! output is normalized per head and gated.

fragment! {
    hparams {
        d_conv: usize = "ssm.conv_kernel";
        d_inner: usize = "ssm.inner_size";
        d_state: usize = "ssm.state_size";
        n_value: usize = "ssm.time_step_rank";
        n_key: usize = "ssm.group_count";
        let per_key = n_value / n_key;
        check d_inner == d_state * n_value && n_value == n_key * per_key,
              "ssm.inner_size must equal ssm.time_step_rank * ssm.state_size, and ssm.group_count must divide ssm.time_step_rank";
        // Value heads that share a key head are contiguous; later models assign them round-robin.
        let by_key = true;
    }

    tensors {
        wqkv?: linear "attn_qkv" [n_embd -> n_key * d_state * (2 + per_key)];
        if has(wqkv) {
            wz: linear "attn_gate" [n_embd -> n_key * d_state * per_key];
            ignore "ssm_in"; // files may contain both forms
        } else {
            wqkvz: linear "ssm_in" [n_embd -> n_key * (d_state * (2 + 2 * per_key))]; // this tensor exists in older files
        }
        conv:     vector "ssm_conv1d"  [d_conv, n_key * d_state * (2 + per_key)];
        dt_bias:  raw    "ssm_dt.bias" [n_key * per_key];
        a:        raw    "ssm_a"       [n_key * per_key];
        ssm_norm: vector "ssm_norm"    [d_state];
        ssm_out:  linear "ssm_out"     [n_key * d_state * per_key -> n_embd];
        if by_key {
            beta_alpha: linear "ssm_ba" [n_embd -> n_key * (2 * per_key)];
        } else {
            beta:  linear "ssm_beta"  [n_embd -> n_key * per_key];
            alpha: linear "ssm_alpha" [n_embd -> n_key * per_key];
        }
    }

    checkpoint {
        d_conv = "linear_conv_kernel_dim";
        d_state = "linear_key_head_dim";
        n_value = "linear_num_value_heads";
        n_key = "linear_num_key_heads";
        d_inner = n_value * "linear_value_head_dim";
        without wqkv, wz "the class has the other form of this projection";
        wqkvz <- ".linear_attn.in_proj_qkvz";
        conv <- ".linear_attn.conv1d" squeeze;
        dt_bias <- ".linear_attn.dt_bias";
        a <- ".linear_attn.A_log" exp neg;
        ssm_norm <- ".linear_attn.norm";
        ssm_out <- ".linear_attn.out_proj";
        beta_alpha <- ".linear_attn.in_proj_ba";
        beta <- ".linear_attn.in_proj_b";
        alpha <- ".linear_attn.in_proj_a";
    }

    fn delta_net(h: [n_embd, T], act = silu) {
        let qkvz = if has(wqkv) {
            concat(wqkv(h), wz(h))
        } else {
            let all = heads(wqkvz(h), n_key);
            let qk = concat(merge(all[..d_state]), merge(all[d_state..2 * d_state]));
            let vz = all[2 * d_state..];
            concat(qk, concat(merge(vz[..d_state * per_key]), merge(vz[d_state * per_key..])))
        };
        let qkv = silu(short_conv(qkvz[..n_key * d_state * (2 + per_key)], conv));
        let q = rms_norm(heads(qkv[..n_key * d_state], n_key), rms_norm_eps / d_state) / sqrt(d_state);
        let k = rms_norm(heads(qkv[n_key * d_state..2 * n_key * d_state], n_key), rms_norm_eps / d_state) / sqrt(d_state);
        let v = heads(qkv[2 * n_key * d_state..], n_key * per_key);
        let gates = if by_key {
            let all = heads(beta_alpha(h), n_key);
            concat(merge(all[..per_key]), merge(all[per_key..]))
        } else {
            concat(beta(h), alpha(h))
        };
        let decay = softplus(gates[n_key * per_key..] + dt_bias) * a;
        let y = linear_attention(q, k, v, decay = heads(decay, n_key * per_key), delta = true, tiled = !by_key,
                                 beta = heads(sigmoid(gates[..n_key * per_key]), n_key * per_key));
        let z = heads(qkvz[n_key * d_state * (2 + per_key)..], n_key * per_key);
        ssm_out(merge(act(z) * rms_norm(y, ssm_norm)))
    }
}
