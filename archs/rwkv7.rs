//! RWKV 7 (Goose): heads keep matrices of keys and values that each token decays, corrects and adds to; the values of the first layer
//! come back in all others (arXiv 2503.14456).

arch_macros::arch! {
    name: "rwkv7";
    rope: none;

    hparams {
        eps: f32 = "attention.layer_norm_epsilon" or 0.0;
        head_size: usize = "wkv.head_size";
        n_decay: usize = "attention.decay_lora_rank";
        n_rate: usize = "attention.iclr_lora_rank";
        n_value: usize = "attention.value_residual_mix_lora_rank";
        n_gate: usize = "attention.gate_lora_rank" or 0;
        check head_size > 0 && n_embd % head_size == 0, "embedding_length is a multiple of wkv.head_size";
        let n_wkv = n_embd / head_size;
        let n_att = n_wkv * head_size;
        let n_back = if il == 0 { n_rate } else { n_value }; // not used in the first layer
    }

    tensors {
        token_embd:  embed  "token_embd"      [n_embd, n_vocab];
        embd_norm:   norm   "token_embd_norm" [n_embd];
        output_norm: norm   "output_norm"     [n_embd];
        output:      linear "output"          [n_embd -> n_vocab];

        layer {
            att_norm:   norm   "attn_norm"           [n_embd];
            lerp:       vector "time_mix_lerp_fused" [n_embd, 1, 1, 6];
            w0:         vector "time_mix_w0"         [n_att];
            w1:         linear "time_mix_w1"         [n_embd -> n_decay];
            w2:         linear "time_mix_w2"         [n_decay -> n_att];
            a0:         vector "time_mix_a0"         [n_att];
            a1:         linear "time_mix_a1"         [n_embd -> n_rate];
            a2:         linear "time_mix_a2"         [n_rate -> n_att];
            v0:         vector "time_mix_v0"         [n_att];
            v1:         linear "time_mix_v1"         [n_embd -> n_back];
            v2:         linear "time_mix_v2"         [n_back -> n_att];
            g1:         linear "time_mix_g1"         [n_embd -> n_gate];
            g2:         linear "time_mix_g2"         [n_gate -> n_att];
            k_k:        vector "time_mix_k_k"        [n_att];
            k_a:        vector "time_mix_k_a"        [n_att];
            r_k:        vector "time_mix_r_k"        [n_att];
            wr:         linear "time_mix_receptance" [n_embd -> n_att];
            wk:         linear "time_mix_key"        [n_embd -> n_att];
            wv:         linear "time_mix_value"      [n_embd -> n_att];
            ln:         vector "time_mix_ln"         [n_att];
            ln_b:       raw    "time_mix_ln.bias"    [n_att];
            wo:         linear "time_mix_output"     [n_att -> n_embd];
            ffn_norm:   norm   "attn_norm_2"         [n_embd];
            ffn_lerp_k: vector "channel_mix_lerp_k"  [n_embd];
            ffn_key:    linear "channel_mix_key"     [n_embd -> n_ff];
            ffn_value:  linear "channel_mix_value"   [n_ff -> n_embd];
        }
    }

    graph {
        let x = layer_norm(token_embd[tokens], embd_norm, eps);
        let values = rust!([n_att, T] => x); // of the first layer, once it is done
        for layer {
            let h = layer_norm(x, att_norm, eps);
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
            let y = merge(layer_norm(y, 0.00064)) * ln + ln_b;
            y += merge(heads(v, n_wkv) * sum_rows(heads(k * r * r_k, n_wkv)));
            x += wo(y * g2(sigmoid(g1(h + step * part(lerp, 5)))));

            let h = layer_norm(x, ffn_norm, eps);
            let step = previous(h) - h;
            x += ffn_value(relu_sqr(ffn_key(h + step * ffn_lerp_k)));
        }
        output(layer_norm(x, output_norm, eps))
    }

    test {
        n_embd: 64, n_head: 0, n_layer: 2, n_ff: 96, n_vocab: 128, head_size: 16, n_decay: 8, n_rate: 8, n_value: 8, n_gate: 8
    }
}
