//! Mamba: no attention; each layer convolves its channels with their recent past and scans them with states of their own, whose
//! decays depend on the input (arXiv 2312.00752). FalconMamba normalizes step, B and C.

arch_macros::arch! {
    name: "mamba";
    rope: none;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        d_conv: usize = "ssm.conv_kernel";
        d_inner: usize = "ssm.inner_size";
        d_state: usize = "ssm.state_size";
        dt_rank: usize = "ssm.time_step_rank";
        norms: bool = "ssm.dt_b_c_rms" or false;
        check d_inner == 2 * n_embd, "ssm.inner_size is twice embedding_length";
    }

    tensors {
        token_embd:  embed  "token_embd"  [n_embd, n_vocab];
        output_norm: vector "output_norm" [n_embd];
        output:      linear "output"      [n_embd -> n_vocab] or token_embd;

        layer {
            attn_norm: vector "attn_norm"       [n_embd];
            ssm_in:    linear "ssm_in"          [n_embd -> 2 * d_inner];
            conv:      vector "ssm_conv1d"      [d_conv, d_inner];
            conv_b:    raw    "ssm_conv1d.bias" [d_inner];
            ssm_x:     linear "ssm_x"           [d_inner -> dt_rank + 2 * d_state];
            ssm_dt:    linear "ssm_dt"          [dt_rank -> d_inner];
            a:         raw    "ssm_a"           [d_state, d_inner];
            d:         raw    "ssm_d"           [d_inner];
            ssm_out:   linear "ssm_out"         [d_inner -> n_embd];
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let xz = ssm_in(rms_norm(x, attn_norm, eps));
            let u = silu(short_conv(xz[..d_inner], conv, conv_b));
            let dbc = ssm_x(u);
            let dt = dbc[..dt_rank];
            let enter = dbc[dt_rank..dt_rank + d_state];
            let leave = dbc[dt_rank + d_state..];
            if norms {
                dt = rms_norm(dt, eps);
                enter = rms_norm(enter, eps);
                leave = rms_norm(leave, eps);
            }
            let step = softplus(ssm_dt(dt));
            let y = merge(ssm_scan(heads(u, d_inner), step, a, heads(enter, 1), heads(leave, 1), d));
            x += ssm_out(silu(xz[d_inner..]) * y);
        }
        output(rms_norm(x, output_norm, eps))
    }

    test { n_embd: 64, n_head: 0, n_layer: 2, n_ff: 0, n_vocab: 128, d_conv: 4, d_inner: 128, d_state: 16, dt_rank: 4 }
}
