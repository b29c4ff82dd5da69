//! PLaMo 2: layers without key heads are Mamba mixers with multi-channel heads, whose gates and values are interleaved
//! by head in one projection. Norms precede and follow each block, and apply to the step, B, and C.

arch_macros::arch! {
    name: "plamo2";
    rope: neox;

    hparams {
        d_conv: usize = "ssm.conv_kernel";
        inner: usize = "ssm.inner_size";
        d_state: usize = "ssm.state_size";
        n_ssm: usize = "ssm.time_step_rank"; // number of SSM heads
        check n_ssm > 0 && inner % n_ssm == 0, "ssm.inner_size must be a multiple of ssm.time_step_rank";
        let d_head = inner / n_ssm;
        let d_inner = d_head * n_ssm;
        let d_step = max(64, n_embd / 16);
        let kq_scale = 1.0 / sqrt(head_dim_v);
        let recurrent = n_head_kv == 0;
    }

    tensors {
        use tied_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            if recurrent {
                ssm_in:  linear "ssm_in"      [n_embd -> 2 * d_inner];
                conv:    vector "ssm_conv1d"  [d_conv, d_inner];
                ssm_x:   linear "ssm_x"       [d_inner -> d_step + 2 * d_state];
                ssm_dt:  linear "ssm_dt"      [d_step -> n_ssm];
                ssm_out: linear "ssm_out"     [d_inner -> n_embd];
                dt_norm: raw    "ssm_dt_norm" [d_step];
                ssm_a, ssm_d: raw [n_ssm];
                b_norm, c_norm: raw "ssm_b_norm", "ssm_c_norm" [d_state];
            } else {
                use self_attention;
                q_norm: vector "attn_q_norm" [head_dim, n_head];
                k_norm: vector "attn_k_norm" [head_dim, n_head_kv];
            }
            use fused_gated_ffn;
            attn_post, ffn_post: raw "post_attention_norm", "post_ffw_norm" [n_embd];
        }
    }

    fn queries(x) { rms_norm(heads(wq(x), n_head)) * q_norm }
    fn keys(x) { rms_norm(heads(wk(x), n_head_kv)) * k_norm }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm);
            let mixed = if recurrent {
                let zx = heads(ssm_in(h), n_ssm);
                let u = silu(short_conv(merge(zx[d_head..]), conv));
                let bcd = ssm_x(u);
                let ssm_b = rms_norm(bcd[..d_state]) * b_norm;
                let ssm_c = rms_norm(bcd[d_state..2 * d_state]) * c_norm;
                let dt = softplus(ssm_dt(rms_norm(bcd[2 * d_state..]) * dt_norm));
                let y = ssm_scan(heads(u, n_ssm), dt, ssm_a, heads(ssm_b, 1), heads(ssm_c, 1), ssm_d);
                ssm_out(merge(silu(zx[..d_head]) * y))
            } else {
                attend(h, scale = kq_scale)
            };
            x += rms_norm(mixed) * attn_post;
            x += rms_norm(ffn(rms_norm(x, ffn_norm))) * ffn_post;
        }
        output(rms_norm(x, output_norm))
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, d_conv: 4, inner: 512, d_state: 16, n_ssm: 2 }
}
