//! Time mixing of RWKV 6 (arXiv 2404.05892). `h` is the normalized token, `step` its difference to the
//! preceding token. `ddlerp` interpolates between both by data-dependent weights: `low` is the low-rank part
//! shared by all five uses, `lerp_i` the constant part of use `i`.

fragment! {
    hparams {
        head_size: usize = "wkv.head_size";
        n_mix: usize = "time_mix_extra_dim";
        n_decay: usize = "time_decay_extra_dim";
        check head_size > 0 && n_embd % head_size == 0, "embedding_length must be a multiple of wkv.head_size";
        let n_wkv = n_embd / head_size;
        let n_att = n_wkv * head_size;
    }

    tensors {
        mix_w1:      linear "time_mix_w1"         [n_embd -> 5 * n_mix];
        mix_w2:      vector "time_mix_w2"         [n_mix, n_embd, 5];
        lerp_x:      vector "time_mix_lerp_x"     [n_embd];
        lerp_fused?: vector "time_mix_lerp_fused" [n_embd, 1, 1, 5];
        decay:       vector "time_mix_decay"      [n_att];
        decay_w1:    linear "time_mix_decay_w1"   [n_embd -> n_decay];
        decay_w2:    linear "time_mix_decay_w2"   [n_decay -> n_att];
        wr:          linear "time_mix_receptance" [n_embd -> n_att];
        wk:          linear "time_mix_key"        [n_embd -> n_att];
        wv:          linear "time_mix_value"      [n_embd -> n_att];
        wg:          linear "time_mix_gate"       [n_embd -> n_att];
        wo:          linear "time_mix_output"     [n_att -> n_embd];
    }

    fn ddlerp_low(h: [n_embd, T], step: [n_embd, T]) {
        tanh(mix_w1(h + step * lerp_x))
    }

    fn ddlerp(h: [n_embd, T], step: [n_embd, T], low: [5 * n_mix, T], i = 0, own?) {
        let mix = matmul(part(mix_w2, i), low[i * n_mix..(i + 1) * n_mix]);
        if has(lerp_fused) {
            mix += part(lerp_fused, i);
        } else if has(own) {
            mix += own;
        }
        h + step * mix
    }

    fn log_decay(x: [n_embd, T]) {
        neg(exp(decay_w2(tanh(decay_w1(x))) + decay))
    }
}
