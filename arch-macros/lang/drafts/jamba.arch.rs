//! Jamba: Mamba layers, some layers of attention without positions, experts in some of both.

name: "jamba";
rope: none;

hparams {
    eps: f32 = "attention.layer_norm_rms_epsilon";
    d_conv: usize = "ssm.conv_kernel";
    d_inner: usize = "ssm.inner_size";
    d_state: usize = "ssm.state_size";
    dt_rank: usize = "ssm.time_step_rank";
    check d_inner == 2 * n_embd, "ssm.inner_size is twice embedding_length";
    let recurrent = n_head_kv == 0;
}

tensors {
    token_embd:  embed  "token_embd"  [n_embd, n_vocab];
    output_norm: vector "output_norm" [n_embd];
    output:      linear "output"      [n_embd -> n_vocab] or token_embd;

    layer {
        attn_norm: vector "attn_norm" [n_embd];
        if recurrent {
            ssm_in:  linear "ssm_in"          [n_embd -> 2 * d_inner];
            conv:    vector "ssm_conv1d"      [d_conv, d_inner];
            conv_b:  raw    "ssm_conv1d.bias" [d_inner];
            ssm_x:   linear "ssm_x"           [d_inner -> dt_rank + 2 * d_state];
            dt_norm: vector "ssm_dt_norm"     [dt_rank];
            dt:      linear "ssm_dt"          [dt_rank -> d_inner];
            b_norm:  vector "ssm_b_norm"      [d_state];
            c_norm:  vector "ssm_c_norm"      [d_state];
            a:       raw    "ssm_a"           [d_state, d_inner];
            d:       raw    "ssm_d"           [d_inner];
            ssm_out: linear "ssm_out"         [d_inner -> n_embd];
            state {
                conv_state: [d_conv - 1, d_inner];
                ssm_state:  [d_state, d_inner];
            }
        } else {
            wq: linear "attn_q"      [n_embd -> n_head * head_dim];
            wk: linear "attn_k"      [n_embd -> n_head_kv * head_dim];
            wv: linear "attn_v"      [n_embd -> n_head_kv * head_dim_v];
            wo: linear "attn_output" [n_head * head_dim_v -> n_embd];
        }
        ffn_norm:   vector  "ffn_norm"      [n_embd];
        router?:    linear  "ffn_gate_inp"  [n_embd -> n_expert];
        gate_exps?: experts "ffn_gate_exps" [n_embd -> n_ff; n_expert];
        up_exps?:   experts "ffn_up_exps"   [n_embd -> n_ff; n_expert];
        down_exps?: experts "ffn_down_exps" [n_ff -> n_embd; n_expert];
        gate?:      linear  "ffn_gate"      [n_embd -> n_ff];
        up?:        linear  "ffn_up"        [n_embd -> n_ff];
        down?:      linear  "ffn_down"      [n_ff -> n_embd];
    }
}

graph {
    let x = token_embd[tokens];
    for layer {
        let h = rms_norm(x, attn_norm, eps);
        if recurrent {
            let xz = ssm_in(h);
            let u = silu(conv1d(xz[..d_inner], conv, state = conv_state) + conv_b);
            let dbc = ssm_x(u);
            let step = dt(rms_norm(dbc[..dt_rank], dt_norm, eps));
            let bb = rms_norm(dbc[dt_rank..dt_rank + d_state], b_norm, eps);
            let cc = rms_norm(dbc[dt_rank + d_state..], c_norm, eps);
            let y = ssm_scan(u, step, a, bb, cc, state = ssm_state) + u * d;
            x += ssm_out(silu(xz[d_inner..]) * y);
        } else {
            x += wo(attention(heads(wq(h), n_head), heads(wk(h), n_head_kv), heads(wv(h), n_head_kv)));
        }
        let h = rms_norm(x, ffn_norm, eps);
        if has(router) && has(gate_exps) && has(up_exps) && has(down_exps) {
            x += moe(h, router = router(h), gate = gate_exps, up = up_exps, down = down_exps, act = silu,
                     gating = softmax, n_used = n_expert_used, norm_weights = false);
        }
        if has(gate) && has(up) && has(down) {
            x += down(silu(gate(h)) * up(h));
        }
    }
    output(rms_norm(x, output_norm, eps))
}

test {
    n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, d_conv: 4, d_inner: 512, d_state: 128, dt_rank: 16
}
