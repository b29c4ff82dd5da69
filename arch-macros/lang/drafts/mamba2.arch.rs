//! Mamba 2: state space duality; no attention, a state of fixed size per sequence.

name: "mamba2";
rope: none;

hparams {
    eps: f32 = "attention.layer_norm_rms_epsilon";
    d_conv: usize = "ssm.conv_kernel";
    d_inner: usize = "ssm.inner_size";
    d_state: usize = "ssm.state_size";
    n_ssm_head: usize = "ssm.time_step_rank";
    n_group: usize = "ssm.group_count";
    let conv_dim = d_inner + 2 * n_group * d_state;
    check d_inner % n_ssm_head == 0, "ssm.inner_size is a multiple of ssm.time_step_rank";
    check d_inner % n_group == 0, "ssm.inner_size is a multiple of ssm.group_count";
}

tensors {
    token_embd:  embed  "token_embd"  [n_embd, n_vocab];
    output_norm: vector "output_norm" [n_embd];
    output:      linear "output"      [n_embd -> n_vocab] or token_embd;

    layer {
        attn_norm: vector "attn_norm"       [n_embd];
        ssm_in:    linear "ssm_in"          [n_embd -> d_inner + conv_dim + n_ssm_head];
        conv:      vector "ssm_conv1d"      [d_conv, conv_dim];
        conv_bias: raw    "ssm_conv1d.bias" [conv_dim];
        dt_bias:   raw    "ssm_dt.bias"     [n_ssm_head];
        a:         raw    "ssm_a"           [1, n_ssm_head];
        d:         raw    "ssm_d"           [1, n_ssm_head];
        ssm_norm:  vector "ssm_norm"        [d_inner / n_group, n_group];
        ssm_out:   linear "ssm_out"         [d_inner -> n_embd];
        state {
            conv_state: [d_conv - 1, conv_dim];
            ssm_state:  [d_state, d_inner];
        }
    }
}

graph {
    let x = token_embd[tokens];
    for layer {
        let h = ssm_in(rms_norm(x, attn_norm, eps));
        let z = h[..d_inner];
        let dt = h[d_inner + conv_dim..] + dt_bias;
        let u = silu(conv1d(h[d_inner..d_inner + conv_dim], conv, state = conv_state) + conv_bias);
        let v = heads(u[..d_inner], n_ssm_head);
        let k = heads(u[d_inner..d_inner + n_group * d_state], n_group);
        let q = heads(u[d_inner + n_group * d_state..], n_group);
        let y = ssm_scan(v, dt, a, k, q, state = ssm_state) + v * d;
        let y = silu(z) * merge(y);
        let y = merge(rms_norm(heads(y, n_group), eps) * ssm_norm);
        x += ssm_out(y);
    }
    output(rms_norm(x, output_norm, eps))
}

test {
    n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, d_conv: 4, d_inner: 512, d_state: 128, n_ssm_head: 2,
    n_group: 2
}
