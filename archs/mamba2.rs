//! Mamba 2: scans of whole heads with one decay each, B and C shared by groups of heads, and a gated norm per group before the
//! projection out (arXiv 2405.21060).

arch_macros::arch! {
    name: "mamba2";
    rope: none;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        d_conv: usize = "ssm.conv_kernel";
        inner: usize = "ssm.inner_size";
        d_state: usize = "ssm.state_size";
        dt_rank: usize = "ssm.time_step_rank";
        n_group: usize = "ssm.group_count";
        check n_group > 0 && dt_rank % n_group == 0, "ssm.time_step_rank is a multiple of ssm.group_count";
        check dt_rank > 0 && inner % dt_rank == 0, "ssm.inner_size is a multiple of ssm.time_step_rank";
        let n_heads = dt_rank / n_group * n_group;
        let d_inner = inner / dt_rank * n_heads;
        let bc = n_group * d_state;
    }

    tensors {
        token_embd:  embed  "token_embd"  [n_embd, n_vocab];
        output_norm: vector "output_norm" [n_embd];
        output:      linear "output"      [n_embd -> n_vocab] or token_embd;

        layer {
            attn_norm: vector "attn_norm"       [n_embd];
            ssm_in:    linear "ssm_in"          [n_embd -> 2 * d_inner + 2 * bc + n_heads];
            conv:      vector "ssm_conv1d"      [d_conv, d_inner + 2 * bc];
            conv_b:    raw    "ssm_conv1d.bias" [d_inner + 2 * bc];
            dt_b:      raw    "ssm_dt.bias"     [n_heads];
            a:         raw    "ssm_a"           [1, n_heads];
            d:         raw    "ssm_d"           [1, n_heads];
            ssm_norm:  vector "ssm_norm"        [d_inner / n_group, n_group];
            ssm_out:   linear "ssm_out"         [d_inner -> n_embd];
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let zxbcdt = ssm_in(rms_norm(x, attn_norm, eps));
            let xbc = silu(short_conv(zxbcdt[d_inner..2 * d_inner + 2 * bc], conv, conv_b));
            let step = softplus(zxbcdt[2 * d_inner + 2 * bc..] + dt_b);
            let enter = heads(xbc[d_inner..d_inner + bc], n_group);
            let leave = heads(xbc[d_inner + bc..], n_group);
            let y = merge(ssm_scan(heads(xbc[..d_inner], n_heads), step, a, enter, leave, d));
            let y = silu(zxbcdt[..d_inner]) * y;
            x += ssm_out(merge(rms_norm(heads(y, n_group), eps) * ssm_norm));
        }
        output(rms_norm(x, output_norm, eps))
    }

    test {
        n_embd: 64, n_head: 0, n_layer: 2, n_ff: 0, n_vocab: 128, d_conv: 4, inner: 128, d_state: 16, dt_rank: 4, n_group: 2
    }
}
