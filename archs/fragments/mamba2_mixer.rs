//! The mixer of Mamba 2, for layers that are not all of this kind. Sizes are the declaration's: `d_inner`, `d_mixed`, `d_conv`, `n_ssm`,
//! `n_group`, `d_state`.

fragment! {
    tensors {
        ssm_in:   linear "ssm_in"          [n_embd -> d_inner + d_mixed + n_ssm];
        conv:     vector "ssm_conv1d"      [d_conv, d_mixed];
        conv_b?:  raw    "ssm_conv1d.bias" [d_mixed];
        dt_b:     raw    "ssm_dt.bias"     [n_ssm];
        ssm_a:    raw    "ssm_a"           [1, n_ssm];
        ssm_d:    raw    "ssm_d"           [1, n_ssm];
        ssm_norm: vector "ssm_norm"        [d_inner / n_group, n_group];
        ssm_out:  linear "ssm_out"         [d_inner -> n_embd];
    }

    fn mixed(x) {
        ssm_out(mamba2(ssm_in(x), inner = d_inner, n_state = d_state, n_group = n_group, conv = conv, conv_bias = conv_b,
                       dt_bias = dt_b, a = ssm_a, d = ssm_d, norm = ssm_norm, eps = eps))
    }
}
