//! RWKV 7 (Goose, arXiv 2503.14456): no attention. Each head keeps a matrix state that every token decays,
//! corrects, and extends. All layers mix in the values of the first layer.

arch_macros::arch! {
    name: "rwkv7";
    rope: none;

    hparams {
        layer_norm_eps: f32 = "attention.layer_norm_epsilon" or 0.0;
    }

    tensors {
        use untied_output(kind = norm);
        embd_norm: norm "token_embd_norm" [n_embd];

        layer {
            att_norm: norm "attn_norm" [n_embd];
            use time_mixing_7;
            ffn_norm:   norm   "attn_norm_2"        [n_embd];
            ffn_lerp_k: vector "channel_mix_lerp_k" [n_embd];
            ffn_key:    linear "channel_mix_key"    [n_embd -> n_ff];
            ffn_value:  linear "channel_mix_value"  [n_ff -> n_embd];
        }
    }

    graph {
        let x = layer_norm(token_embd[tokens], embd_norm);
        let first = x[..n_att]; // replaced by the values of the first layer
        for layer {
            let h = layer_norm(x, att_norm);
            let step = token_shift(h) - h;
            let v = time_mix_values(h, step);
            if il == 0 {
                first = v;
            } else {
                v = value_residual(v, first, h, step);
            }
            x += wo(time_mix(h, step, v) * time_mix_gate(h, step));

            let h = layer_norm(x, ffn_norm);
            let step = token_shift(h) - h;
            x += ffn_value(relu_sqr(ffn_key(h + step * ffn_lerp_k)));
        }
        output(layer_norm(x, output_norm))
    }

    test {
        n_embd: 64, n_head: 0, n_layer: 2, n_ff: 96, n_vocab: 128, head_size: 16, n_decay: 8, n_rate: 8, n_value: 8, n_gate: 8
    }
}
