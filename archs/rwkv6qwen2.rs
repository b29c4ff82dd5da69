//! QRWKV 6: Qwen2 whose attention was replaced by the time mixing of RWKV 6, as gated linear attention with grouped keys and values.

arch_macros::arch! {
    name: "rwkv6qwen2";
    like: "rwkv6";

    hparams {
        without rescale;
        eps: f32 = "attention.layer_norm_rms_epsilon" or 0.0;
        let n_kv = if n_head_kv == 0 { n_wkv } else { n_head_kv };
    }

    tensors {
        without embd_norm;
        output_norm: vector "output_norm" [n_embd];
        norm_bias?: raw "output_norm.bias" [n_embd];

        layer {
            without lerp_w, lerp_k, lerp_v, lerp_r, lerp_g, first, ln, ln_b, ffn_lerp_k, ffn_lerp_r, ffn_key, ffn_value, ffn_gate;
            att_norm:   vector "attn_norm"           [n_embd];
            lerp_fused: vector "time_mix_lerp_fused" [n_embd, 1, 1, 5];
            wk:         linear "time_mix_key"        [n_embd -> n_kv * head_size];
            wv:         linear "time_mix_value"      [n_embd -> n_kv * head_size];
            ffn_norm:   vector "ffn_norm"            [n_embd];
            gate:       linear "ffn_gate"            [n_embd -> n_ff];
            up:         linear "ffn_up"              [n_embd -> n_ff];
            down:       linear "ffn_down"            [n_ff -> n_embd];
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, att_norm, eps);
            let step = previous(h) - h;
            let low = tanh(mix_w1(h + step * lerp_x));
            let xw = h + step * (matmul(part(mix_w2, 0), low[..n_mix]) + part(lerp_fused, 0));
            let xk = h + step * (matmul(part(mix_w2, 1), low[n_mix..2 * n_mix]) + part(lerp_fused, 1));
            let xv = h + step * (matmul(part(mix_w2, 2), low[2 * n_mix..3 * n_mix]) + part(lerp_fused, 2));
            let xr = h + step * (matmul(part(mix_w2, 3), low[3 * n_mix..4 * n_mix]) + part(lerp_fused, 3));
            let xg = h + step * (matmul(part(mix_w2, 4), low[4 * n_mix..]) + part(lerp_fused, 4));
            let decays = heads(neg(exp(decay_w2(tanh(decay_w1(xw))) + decay)), n_wkv);
            let k = repeat_heads(heads(wk(xk), n_kv), n_wkv);
            let v = repeat_heads(heads(wv(xv), n_kv), n_wkv);
            // What a channel keeps is not taken in anew.
            let y = linear_attention(heads(wr(xr), n_wkv), k - k * exp(decays), v, decay = decays);
            x += wo(merge(y) * sigmoid(wg(xg)));
            let h = rms_norm(x, ffn_norm, eps);
            x += down(silu(gate(h)) * up(h));
        }
        let x = rms_norm(x, output_norm, eps);
        if has(norm_bias) {
            x += norm_bias;
        }
        output(x)
    }

    test {
        n_embd: 64, n_head: 4, n_head_kv: 2, n_layer: 2, n_ff: 96, n_vocab: 128, head_size: 16, n_mix: 8, n_decay: 8
    }
}
