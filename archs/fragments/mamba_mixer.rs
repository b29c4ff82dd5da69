//! Mixer of Mamba (arXiv 2312.00752): a short causal convolution and a selective scan with an input-dependent
//! decay per channel. Models that normalize the step, B, and C replace `norm_dt`, `norm_b`, and `norm_c`.

fragment! {
    hparams {
        d_conv: usize = "ssm.conv_kernel";
        d_inner: usize = "ssm.inner_size";
        d_state: usize = "ssm.state_size";
        dt_rank: usize = "ssm.time_step_rank";
        check d_inner == 2 * n_embd, "ssm.inner_size must be twice embedding_length";
    }

    tensors {
        ssm_in:  linear "ssm_in"          [n_embd -> 2 * d_inner];
        conv:    vector "ssm_conv1d"      [d_conv, d_inner];
        conv_b:  raw    "ssm_conv1d.bias" [d_inner];
        ssm_x:   linear "ssm_x"           [d_inner -> dt_rank + 2 * d_state];
        ssm_dt:  linear "ssm_dt"          [dt_rank -> d_inner];
        ssm_a:   raw    "ssm_a"           [d_state, d_inner];
        ssm_d:   raw    "ssm_d"           [d_inner];
        ssm_out: linear "ssm_out"         [d_inner -> n_embd];
    }

    fn mixer(x: [n_embd, T]) {
        let xz = ssm_in(x);
        let u = silu(short_conv(xz[..d_inner], conv, conv_b));
        let dbc = ssm_x(u);
        let dt = softplus(ssm_dt(norm_dt(dbc[..dt_rank])));
        let ssm_b = norm_b(dbc[dt_rank..dt_rank + d_state]);
        let ssm_c = norm_c(dbc[dt_rank + d_state..]);
        let y = ssm_scan(heads(u, d_inner), dt, ssm_a, heads(ssm_b, 1), heads(ssm_c, 1), ssm_d);
        ssm_out(silu(xz[d_inner..]) * merge(y))
    }

    fn norm_dt(x: [dt_rank, T]) {
        x
    }

    fn norm_b(x: [d_state, T]) {
        x
    }

    fn norm_c(x: [d_state, T]) {
        x
    }
}
