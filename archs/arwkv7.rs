//! ARWKV 7: Qwen2 with RWKV 7 time mixing in place of attention. The gates and the head norm are optional.

arch_macros::arch! {
    name: "arwkv7";
    like: "rwkv7";

    hparams {
        without layer_norm_eps;
        rms_norm_eps: f32 = "attention.layer_norm_rms_epsilon" or 0.0;
        let n_lerp = if n_gate > 0 { 6 } else { 5 };
    }

    tensors {
        without embd_norm;
        output_norm: vector [n_embd];

        layer {
            without ffn_lerp_k, ffn_key, ffn_value;
            att_norm: vector "attn_norm"           [n_embd];
            lerp:     vector "time_mix_lerp_fused" [n_embd, 1, 1, n_lerp];
            if n_gate > 0 {
                g1: linear "time_mix_g1" [n_embd -> n_gate];
                g2: linear "time_mix_g2" [n_gate -> n_att];
            }
            ln?:   vector "time_mix_ln"      [n_att];
            ln_b?: raw    "time_mix_ln.bias" [n_att];
            ffn_norm: vector [n_embd];
            use gated_ffn;
        }
    }

    fn group_norm(y) {
        if has(ln) && has(ln_b) { merge(layer_norm(y, 0.00064)) * ln + ln_b } else { merge(y) }
    }

    graph {
        let x = token_embd[tokens];
        let first = x[..n_att]; // replaced by the values of the first layer
        for layer {
            let h = rms_norm(x, att_norm);
            let step = token_shift(h) - h;
            let v = time_mix_values(h, step);
            if il == 0 {
                first = v;
            } else {
                v = value_residual(v, first, h, step);
            }
            let y = time_mix(h, step, v);
            if n_gate > 0 {
                y *= time_mix_gate(h, step);
            }
            x += wo(y);
            x += ffn(rms_norm(x, ffn_norm));
        }
        output(rms_norm(x, output_norm))
    }
}
