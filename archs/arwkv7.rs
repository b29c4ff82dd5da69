//! ARWKV 7: Qwen2 whose attention was replaced by the time mixing of RWKV 7; gates and the norm of heads may be absent.

arch_macros::arch! {
    name: "arwkv7";
    like: "rwkv7";

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon" or 0.0;
        let n_lerp = if n_gate > 0 { 6 } else { 5 };
    }

    tensors {
        without embd_norm;
        output_norm: vector "output_norm" [n_embd];

        layer {
            without ffn_lerp_k, ffn_key, ffn_value;
            att_norm: vector "attn_norm"           [n_embd];
            lerp:     vector "time_mix_lerp_fused" [n_embd, 1, 1, n_lerp];
            if n_gate > 0 {
                g1: linear "time_mix_g1" [n_embd -> n_gate];
                g2: linear "time_mix_g2" [n_gate -> n_att];
            }
            ln?:      vector "time_mix_ln"         [n_att];
            ln_b?:    raw    "time_mix_ln.bias"    [n_att];
            ffn_norm: vector "ffn_norm"            [n_embd];
            gate:     linear "ffn_gate"            [n_embd -> n_ff];
            up:       linear "ffn_up"              [n_embd -> n_ff];
            down:     linear "ffn_down"            [n_ff -> n_embd];
        }
    }

    graph {
        let x = token_embd[tokens];
        let values = rust!([n_att, T] => x); // of the first layer, once it is done
        for layer {
            let h = rms_norm(x, att_norm, eps);
            let step = previous(h) - h;
            let r = wr(h + step * part(lerp, 0));
            let w = exp(sigmoid(w2(tanh(w1(h + step * part(lerp, 1)))) + w0) * -0.606531);
            let k = wk(h + step * part(lerp, 2));
            let xv = h + step * part(lerp, 3);
            let v = wv(xv);
            if il == 0 {
                values = v;
            } else {
                v += (values - v) * sigmoid(v2(v1(xv)) + v0);
            }
            let rate = sigmoid(a2(a1(h + step * part(lerp, 4))) + a0);
            let kk = l2_norm(heads(k * k_k, n_wkv), 1e-12);
            let ka = k * k_a;
            k += rate * ka - ka;
            let y = wkv7(heads(r, n_wkv), heads(w, n_wkv), heads(k, n_wkv), heads(v, n_wkv), neg(kk), kk * heads(rate, n_wkv));
            if has(ln) && has(ln_b) {
                y = heads(merge(layer_norm(y, 0.00064)) * ln + ln_b, n_wkv);
            }
            let y = merge(y + heads(v, n_wkv) * sum_rows(heads(k * r * r_k, n_wkv)));
            if n_gate > 0 {
                y *= g2(sigmoid(g1(h + step * part(lerp, 5))));
            }
            x += wo(y);
            let h = rms_norm(x, ffn_norm, eps);
            x += down(silu(gate(h)) * up(h));
        }
        output(rms_norm(x, output_norm, eps))
    }

    test {
        n_embd: 64, n_head: 0, n_layer: 2, n_ff: 96, n_vocab: 128, head_size: 16, n_decay: 8, n_rate: 8, n_value: 8, n_gate: 8
    }
}
