//! QRWKV 6: Qwen2 with RWKV 6 time mixing in place of attention, used as gated linear attention with grouped
//! keys and values.

arch_macros::arch! {
    name: "rwkv6qwen2";
    like: "rwkv6";

    hparams {
        without layer_norm_eps, rescale;
        rms_norm_eps: f32 = "attention.layer_norm_rms_epsilon" or 0.0;
        let n_kv = if n_head_kv == 0 { n_wkv } else { n_head_kv };
    }

    tensors {
        without embd_norm;
        output_norm: vector [n_embd];
        norm_bias?: raw "output_norm.bias" [n_embd];

        layer {
            without lerp_w, lerp_k, lerp_v, lerp_r, lerp_g, first, ln, ln_b, ffn_lerp_k, ffn_lerp_r, ffn_key, ffn_value, ffn_gate;
            att_norm:   vector "attn_norm"           [n_embd];
            lerp_fused: vector "time_mix_lerp_fused" [n_embd, 1, 1, 5];
            wk:         linear "time_mix_key"        [n_embd -> n_kv * head_size];
            wv:         linear "time_mix_value"      [n_embd -> n_kv * head_size];
            ffn_norm: vector [n_embd];
            use gated_ffn;
        }
    }

    fn ddlerp(h, step, low, i = 0) {
        h + step * (matmul(part(mix_w2, i), low[i * n_mix..(i + 1) * n_mix]) + part(lerp_fused, i))
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, att_norm);
            let step = token_shift(h) - h;
            let low = ddlerp_low(h, step);
            let decays = heads(log_decay(ddlerp(h, step, low, i = 0)), n_wkv);
            let k = repeat_heads(heads(wk(ddlerp(h, step, low, i = 1)), n_kv), n_wkv);
            let v = repeat_heads(heads(wv(ddlerp(h, step, low, i = 2)), n_kv), n_wkv);
            let r = heads(wr(ddlerp(h, step, low, i = 3)), n_wkv);
            // Scales the key of each channel by the decayed fraction of the state.
            let y = linear_attention(r, k - k * exp(decays), v, decay = decays);
            x += wo(merge(y) * sigmoid(wg(ddlerp(h, step, low, i = 4))));
            x += ffn(rms_norm(x, ffn_norm));
        }
        let x = rms_norm(x, output_norm);
        if has(norm_bias) {
            x += norm_bias;
        }
        output(x)
    }

    test {
        n_embd: 64, n_head: 4, n_head_kv: 2, n_layer: 2, n_ff: 96, n_vocab: 128, head_size: 16, n_mix: 8, n_decay: 8
    }
}
