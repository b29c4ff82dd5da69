//! RWKV 6 (Finch): no attention; each token is mixed with the one before it by weights that depend on both, then heads keep matrices
//! of keys and values with decays by channel and token (arXiv 2404.05892).

arch_macros::arch! {
    name: "rwkv6";
    rope: none;

    hparams {
        eps: f32 = "attention.layer_norm_epsilon" or 0.0;
        head_size: usize = "wkv.head_size";
        n_mix: usize = "time_mix_extra_dim";
        n_decay: usize = "time_decay_extra_dim";
        rescale: usize = "rescale_every_n_layers" or 0;
        check head_size > 0 && n_embd % head_size == 0, "embedding_length is a multiple of wkv.head_size";
        let n_wkv = n_embd / head_size;
        let n_att = n_wkv * head_size;
    }

    tensors {
        token_embd:  embed  "token_embd"      [n_embd, n_vocab];
        embd_norm:   norm   "token_embd_norm" [n_embd];
        output_norm: norm   "output_norm"     [n_embd];
        output:      linear "output"          [n_embd -> n_vocab];

        layer {
            att_norm:    norm   "attn_norm"             [n_embd];
            mix_w1:      linear "time_mix_w1"           [n_embd -> 5 * n_mix];
            mix_w2:      vector "time_mix_w2"           [n_mix, n_embd, 5];
            lerp_x:      vector "time_mix_lerp_x"       [n_embd];
            lerp_fused?: vector "time_mix_lerp_fused"   [n_embd, 1, 1, 5];
            lerp_w?:     vector "time_mix_lerp_w"       [n_embd];
            lerp_k?:     vector "time_mix_lerp_k"       [n_embd];
            lerp_v?:     vector "time_mix_lerp_v"       [n_embd];
            lerp_r?:     vector "time_mix_lerp_r"       [n_embd];
            lerp_g?:     vector "time_mix_lerp_g"       [n_embd];
            first:       vector "time_mix_first"        [head_size, n_wkv];
            decay:       vector "time_mix_decay"        [n_att];
            decay_w1:    linear "time_mix_decay_w1"     [n_embd -> n_decay];
            decay_w2:    linear "time_mix_decay_w2"     [n_decay -> n_att];
            wr:          linear "time_mix_receptance"   [n_embd -> n_att];
            wk:          linear "time_mix_key"          [n_embd -> n_att];
            wv:          linear "time_mix_value"        [n_embd -> n_att];
            wg:          linear "time_mix_gate"         [n_embd -> n_att];
            ln:          vector "time_mix_ln"           [n_att];
            ln_b:        raw    "time_mix_ln.bias"      [n_att];
            wo:          linear "time_mix_output"       [n_att -> n_embd];
            ffn_norm:    norm   "attn_norm_2"           [n_embd];
            ffn_lerp_k:  vector "channel_mix_lerp_k"    [n_embd];
            ffn_lerp_r:  vector "channel_mix_lerp_r"    [n_embd];
            ffn_key:     linear "channel_mix_key"       [n_embd -> n_ff];
            ffn_value:   linear "channel_mix_value"     [n_ff -> n_embd];
            ffn_gate:    linear "channel_mix_receptance" [n_embd -> n_embd];
        }
    }

    graph {
        let x = layer_norm(token_embd[tokens], embd_norm, eps);
        for layer {
            let h = layer_norm(x, att_norm, eps);
            let step = previous(h) - h;
            let low = tanh(mix_w1(h + step * lerp_x));
            let mw = matmul(part(mix_w2, 0), low[..n_mix]);
            let mk = matmul(part(mix_w2, 1), low[n_mix..2 * n_mix]);
            let mv = matmul(part(mix_w2, 2), low[2 * n_mix..3 * n_mix]);
            let mr = matmul(part(mix_w2, 3), low[3 * n_mix..4 * n_mix]);
            let mg = matmul(part(mix_w2, 4), low[4 * n_mix..]);
            if has(lerp_fused) {
                mw += part(lerp_fused, 0);
                mk += part(lerp_fused, 1);
                mv += part(lerp_fused, 2);
                mr += part(lerp_fused, 3);
                mg += part(lerp_fused, 4);
            } else if has(lerp_w) && has(lerp_k) && has(lerp_v) && has(lerp_r) && has(lerp_g) {
                mw += lerp_w;
                mk += lerp_k;
                mv += lerp_v;
                mr += lerp_r;
                mg += lerp_g;
            }
            let w = exp(neg(exp(decay_w2(tanh(decay_w1(h + step * mw))) + decay)));
            let r = heads(wr(h + step * mr), n_wkv);
            let k = heads(wk(h + step * mk), n_wkv);
            let v = heads(wv(h + step * mv), n_wkv);
            let y = layer_norm(wkv6(r, k, v, heads(w, n_wkv), first), 0.00064);
            x += wo((merge(y) * ln + ln_b) * silu(wg(h + step * mg)));

            let h = layer_norm(x, ffn_norm, eps);
            let step = previous(h) - h;
            let gate = sigmoid(ffn_gate(h + step * ffn_lerp_r));
            x += gate * ffn_value(relu_sqr(ffn_key(h + step * ffn_lerp_k)));
            if rescale > 0 && (il + 1) % rescale == 0 {
                x *= 0.5;
            }
        }
        output(layer_norm(x, output_norm, eps))
    }

    test {
        n_embd: 64, n_head: 0, n_layer: 2, n_ff: 96, n_vocab: 128, head_size: 16, n_mix: 8, n_decay: 8
    }
}
