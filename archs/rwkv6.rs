//! RWKV 6 (Finch, arXiv 2404.05892): no attention. Each token is interpolated with the preceding token by
//! data-dependent weights, and each head keeps a matrix state with decays per channel and token.

arch_macros::arch! {
    name: "rwkv6";
    rope: none;

    hparams {
        layer_norm_eps: f32 = "attention.layer_norm_epsilon" or 0.0;
        rescale: usize = "rescale_every_n_layers" or 0;
    }

    tensors {
        use untied_output(kind = norm);
        embd_norm: norm "token_embd_norm" [n_embd];

        layer {
            att_norm: norm "attn_norm" [n_embd];
            use time_mixing_6;
            lerp_w?, lerp_k?, lerp_v?: vector "time_mix_lerp_w", "time_mix_lerp_k", "time_mix_lerp_v" [n_embd];
            lerp_r?, lerp_g?: vector "time_mix_lerp_r", "time_mix_lerp_g" [n_embd];
            first:    vector "time_mix_first"   [head_size, n_wkv];
            ln:       vector "time_mix_ln"      [n_att];
            ln_b:     raw    "time_mix_ln.bias" [n_att];
            ffn_norm: norm   "attn_norm_2"      [n_embd];
            ffn_lerp_k, ffn_lerp_r: vector "channel_mix_lerp_k", "channel_mix_lerp_r" [n_embd];
            ffn_key:   linear "channel_mix_key"        [n_embd -> n_ff];
            ffn_value: linear "channel_mix_value"      [n_ff -> n_embd];
            ffn_gate:  linear "channel_mix_receptance" [n_embd -> n_embd];
        }
    }

    graph {
        let x = layer_norm(token_embd[tokens], embd_norm);
        for layer {
            let h = layer_norm(x, att_norm);
            let step = token_shift(h) - h;
            let low = ddlerp_low(h, step);
            let w = exp(log_decay(ddlerp(h, step, low, i = 0, own = lerp_w)));
            let k = heads(wk(ddlerp(h, step, low, i = 1, own = lerp_k)), n_wkv);
            let v = heads(wv(ddlerp(h, step, low, i = 2, own = lerp_v)), n_wkv);
            let r = heads(wr(ddlerp(h, step, low, i = 3, own = lerp_r)), n_wkv);
            let y = layer_norm(wkv6(r, k, v, heads(w, n_wkv), first), 0.00064);
            x += wo((merge(y) * ln + ln_b) * silu(wg(ddlerp(h, step, low, i = 4, own = lerp_g))));

            let h = layer_norm(x, ffn_norm);
            let step = token_shift(h) - h;
            let gate = sigmoid(ffn_gate(h + step * ffn_lerp_r));
            x += gate * ffn_value(relu_sqr(ffn_key(h + step * ffn_lerp_k)));
            if rescale > 0 && (il + 1) % rescale == 0 {
                x *= 0.5;
            }
        }
        output(layer_norm(x, output_norm))
    }

    test {
        n_embd: 64, n_head: 0, n_layer: 2, n_ff: 96, n_vocab: 128, head_size: 16, n_mix: 8, n_decay: 8
    }
}
