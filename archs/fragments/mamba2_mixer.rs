//! Mixer of Mamba 2 (arXiv 2405.21060): selective scans with one decay per head. Groups of heads share B and C. A
//! gated norm per group precedes the output projection.

fragment! {
    hparams {
        d_conv: usize = "ssm.conv_kernel";
        d_inner: usize = "ssm.inner_size";
        d_state: usize = "ssm.state_size";
        n_ssm: usize = "ssm.time_step_rank"; // number of SSM heads
        n_group: usize = "ssm.group_count";
        check n_group > 0 && n_ssm % n_group == 0, "ssm.time_step_rank must be a multiple of ssm.group_count";
        check n_ssm > 0 && d_inner % n_ssm == 0, "ssm.inner_size must be a multiple of ssm.time_step_rank";
        let d_conv_in = d_inner + 2 * n_group * d_state; // channels of the convolution: values, B, and C
    }

    tensors {
        ssm_in:   linear "ssm_in"          [n_embd -> d_inner + d_conv_in + n_ssm];
        conv:     vector "ssm_conv1d"      [d_conv, d_conv_in];
        conv_b?:  raw    "ssm_conv1d.bias" [d_conv_in];
        dt_b:     raw    "ssm_dt.bias"     [n_ssm];
        ssm_a:    raw    "ssm_a"           [1, n_ssm];
        ssm_d:    raw    "ssm_d"           [1, n_ssm];
        ssm_norm: vector "ssm_norm"        [d_inner / n_group, n_group];
        ssm_out:  linear "ssm_out"         [d_inner -> n_embd];
    }

    checkpoint {
        ssm_in <- ".mixer.in_proj" or ".mamba.in_proj";
        conv <- ".mixer.conv1d" squeeze or ".mamba.conv1d" squeeze;
        conv_b <- ".mixer.conv1d.bias" or ".mamba.conv1d.bias";
        dt_b <- ".mixer.dt_bias" or ".mamba.dt_bias";
        ssm_a <- ".mixer.A_log" exp neg heads n_ssm or ".mamba.A_log" exp neg heads n_ssm;
        ssm_d <- ".mixer.D" heads n_ssm or ".mamba.D" heads n_ssm;
        ssm_norm <- ".mixer.norm" heads n_group or ".mamba.norm" heads n_group;
        ssm_out <- ".mixer.out_proj" or ".mamba.out_proj";
    }

    fn mixer(x: [n_embd, T]) {
        ssm_out(mamba2(ssm_in(x), inner = d_inner, n_state = d_state, n_group = n_group, conv = conv, conv_bias = conv_b,
                       dt_bias = dt_b, a = ssm_a, d = ssm_d, norm = ssm_norm))
    }
}
