//! Jamba: Mamba layers with norms on the step, B, and C, interleaved with attention layers without positions. Some
//! layers of both kinds have experts.

arch_macros::arch! {
    name: "jamba";
    rope: none;

    hparams {
        let recurrent = n_head_kv == 0;
    }

    tensors {
        use tied_output;
        layer {
            attn_norm, ffn_norm: vector [n_embd];
            if recurrent {
                use mamba_mixer;
                dt_norm: vector "ssm_dt_norm" [dt_rank];
                b_norm, c_norm: vector "ssm_b_norm", "ssm_c_norm" [d_state];
            } else {
                use self_attention;
            }
            router?: linear "ffn_gate_inp" [n_embd -> n_expert];
            if has(router) {
                use expert_stacks;
            } else {
                use gated_ffn;
            }
        }
    }

    fn norm_dt(x) { rms_norm(x, dt_norm) }
    fn norm_b(x) { rms_norm(x, b_norm) }
    fn norm_c(x) { rms_norm(x, c_norm) }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm);
            x += if recurrent { mixer(h) } else { attend(h, rotated = false) };
            let h = rms_norm(x, ffn_norm);
            x += if has(router) { routed(h, norm_weights = false) } else { ffn(h) };
        }
        output(rms_norm(x, output_norm))
    }

    test {
        n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, d_conv: 4, d_inner: 512, d_state: 16, dt_rank: 16
    }
}
