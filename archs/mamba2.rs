//! Mamba 2: scans of whole heads with one decay each, B and C shared by groups of heads, and a gated norm per group before the
//! projection out (arXiv 2405.21060).

arch_macros::arch! {
    name: "mamba2";
    rope: none;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        d_conv: usize = "ssm.conv_kernel";
        d_inner: usize = "ssm.inner_size";
        d_state: usize = "ssm.state_size";
        n_ssm: usize = "ssm.time_step_rank"; // heads
        n_group: usize = "ssm.group_count";
        check n_group > 0 && n_ssm % n_group == 0, "ssm.time_step_rank is a multiple of ssm.group_count";
        check n_ssm > 0 && d_inner % n_ssm == 0, "ssm.inner_size is a multiple of ssm.time_step_rank";
        let d_mixed = d_inner + 2 * n_group * d_state;
    }

    tensors {
        token_embd:  embed  "token_embd"  [n_embd, n_vocab];
        output_norm: vector "output_norm" [n_embd];
        output:      linear "output"      [n_embd -> n_vocab] or token_embd;

        layer {
            attn_norm: vector "attn_norm"       [n_embd];
            ssm_in:    linear "ssm_in"          [n_embd -> d_inner + d_mixed + n_ssm];
            conv:      vector "ssm_conv1d"      [d_conv, d_mixed];
            conv_b:    raw    "ssm_conv1d.bias" [d_mixed];
            dt_b:      raw    "ssm_dt.bias"     [n_ssm];
            ssm_a:     raw    "ssm_a"           [1, n_ssm];
            ssm_d:     raw    "ssm_d"           [1, n_ssm];
            ssm_norm:  vector "ssm_norm"        [d_inner / n_group, n_group];
            ssm_out:   linear "ssm_out"         [d_inner -> n_embd];
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = ssm_in(rms_norm(x, attn_norm, eps));
            x += ssm_out(mamba2(h, inner = d_inner, n_state = d_state, n_group = n_group, conv = conv, conv_bias = conv_b,
                                dt_bias = dt_b, a = ssm_a, d = ssm_d, norm = ssm_norm, eps = eps));
        }
        output(rms_norm(x, output_norm, eps))
    }

    test {
        n_embd: 64, n_head: 0, n_layer: 2, n_ff: 0, n_vocab: 128, d_conv: 4, d_inner: 128, d_state: 16, n_ssm: 4, n_group: 2
    }
}
