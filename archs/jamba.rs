//! Jamba: Mamba layers with norms on step, B and C, some layers of attention without positions, experts in some of both.

arch_macros::arch! {
    name: "jamba";
    like: "mamba";

    hparams {
        without norms;
        let recurrent = n_head_kv == 0;
    }

    tensors {
        layer {
            if recurrent {
                ssm_in:  linear "ssm_in"          [n_embd -> 2 * d_inner];
                conv:    vector "ssm_conv1d"      [d_conv, d_inner];
                conv_b:  raw    "ssm_conv1d.bias" [d_inner];
                ssm_x:   linear "ssm_x"           [d_inner -> dt_rank + 2 * d_state];
                dt_norm: vector "ssm_dt_norm"     [dt_rank];
                b_norm:  vector "ssm_b_norm"      [d_state];
                c_norm:  vector "ssm_c_norm"      [d_state];
                ssm_dt:  linear "ssm_dt"          [dt_rank -> d_inner];
                a:       raw    "ssm_a"           [d_state, d_inner];
                d:       raw    "ssm_d"           [d_inner];
                ssm_out: linear "ssm_out"         [d_inner -> n_embd];
            } else {
                use self_attention;
            }
            ffn_norm: vector "ffn_norm"     [n_embd];
            router?:  linear "ffn_gate_inp" [n_embd -> n_expert];
            if has(router) {
                use expert_stacks;
            } else {
                use gated_ffn;
            }
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm, eps);
            if recurrent {
                let xz = ssm_in(h);
                let u = silu(short_conv(xz[..d_inner], conv, conv_b));
                let dbc = ssm_x(u);
                let step = softplus(ssm_dt(rms_norm(dbc[..dt_rank], dt_norm, eps)));
                let enter = rms_norm(dbc[dt_rank..dt_rank + d_state], b_norm, eps);
                let leave = rms_norm(dbc[dt_rank + d_state..], c_norm, eps);
                let y = ssm_scan(heads(u, d_inner), step, a, heads(enter, 1), heads(leave, 1), d);
                x += ssm_out(silu(xz[d_inner..]) * merge(y));
            } else {
                x += wo(attention(heads(wq(h), n_head), heads(wk(h), n_head_kv), heads(wv(h), n_head_kv)));
            }
            let h = rms_norm(x, ffn_norm, eps);
            x += if has(router) { routed(h, norm_weights = false) } else { ffn(h) };
        }
        output(rms_norm(x, output_norm, eps))
    }

    test {
        n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, d_conv: 4, d_inner: 512, d_state: 16, dt_rank: 16
    }
}
