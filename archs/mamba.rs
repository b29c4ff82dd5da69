//! Mamba (arXiv 2312.00752): no attention. Each layer applies a short causal convolution and a selective scan
//! with input-dependent decays per channel. FalconMamba normalizes the step, B, and C.

arch_macros::arch! {
    name: "mamba";
    rope: none;

    hparams {
        norms: bool = "ssm.dt_b_c_rms" or false;
    }

    tensors {
        use tied_output;

        layer {
            attn_norm: vector [n_embd];
            use mamba_mixer;
        }
    }

    // FalconMamba has a separate epsilon for these norms, which files do not contain.
    fn norm_dt(x) { if norms { rms_norm(x, 0.000001) } else { x } }
    fn norm_b(x) { if norms { rms_norm(x, 0.000001) } else { x } }
    fn norm_c(x) { if norms { rms_norm(x, 0.000001) } else { x } }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += mixer(rms_norm(x, attn_norm));
        }
        output(rms_norm(x, output_norm))
    }

    test { n_embd: 64, n_head: 0, n_layer: 2, n_ff: 0, n_vocab: 128, d_conv: 4, d_inner: 128, d_state: 16, dt_rank: 4 }
}
