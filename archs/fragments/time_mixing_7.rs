//! Time mixing of RWKV 7 (arXiv 2503.14456): each head has a matrix state that every token decays, corrects,
//! and extends. `h` is the normalized token, `step` its difference to the preceding token; each use adds a
//! fraction `lerp` of the step.

fragment! {
    hparams {
        head_size: usize = "wkv.head_size";
        n_decay: usize = "attention.decay_lora_rank";
        n_rate: usize = "attention.iclr_lora_rank";
        n_value: usize = "attention.value_residual_mix_lora_rank";
        n_gate: usize = "attention.gate_lora_rank" or 0;
        check head_size > 0 && n_embd % head_size == 0, "embedding_length must be a multiple of wkv.head_size";
        let n_wkv = n_embd / head_size;
        let n_att = n_wkv * head_size;
        let n_back = if il == 0 { n_rate } else { n_value }; // the first layer does not use this value
    }

    tensors {
        lerp: vector "time_mix_lerp_fused" [n_embd, 1, 1, 6];
        w0:   vector "time_mix_w0"         [n_att];
        w1:   linear "time_mix_w1"         [n_embd -> n_decay];
        w2:   linear "time_mix_w2"         [n_decay -> n_att];
        a0:   vector "time_mix_a0"         [n_att];
        a1:   linear "time_mix_a1"         [n_embd -> n_rate];
        a2:   linear "time_mix_a2"         [n_rate -> n_att];
        v0:   vector "time_mix_v0"         [n_att];
        v1:   linear "time_mix_v1"         [n_embd -> n_back];
        v2:   linear "time_mix_v2"         [n_back -> n_att];
        g1:   linear "time_mix_g1"         [n_embd -> n_gate];
        g2:   linear "time_mix_g2"         [n_gate -> n_att];
        k_k:  vector "time_mix_k_k"        [n_att];
        k_a:  vector "time_mix_k_a"        [n_att];
        r_k:  vector "time_mix_r_k"        [n_att];
        wr:   linear "time_mix_receptance" [n_embd -> n_att];
        wk:   linear "time_mix_key"        [n_embd -> n_att];
        wv:   linear "time_mix_value"      [n_embd -> n_att];
        ln:   vector "time_mix_ln"         [n_att];
        ln_b: raw    "time_mix_ln.bias"    [n_att];
        wo:   linear "time_mix_output"     [n_att -> n_embd];
    }

    fn time_mix_values(h: [n_embd, T], step: [n_embd, T]) {
        wv(h + step * part(lerp, 3))
    }

    // Mixes in the values of the first layer.
    fn value_residual(v: [n_att, T], first: [n_att, T], h: [n_embd, T], step: [n_embd, T]) {
        v + (first - v) * sigmoid(v2(v1(h + step * part(lerp, 3))) + v0)
    }

    fn time_mix(h: [n_embd, T], step: [n_embd, T], v: [n_att, T]) {
        let r = wr(h + step * part(lerp, 0));
        let w = exp(sigmoid(w2(tanh(w1(h + step * part(lerp, 1)))) + w0) * -0.606531);
        let k = wk(h + step * part(lerp, 2));
        let rate = sigmoid(a2(a1(h + step * part(lerp, 4))) + a0);
        let kk = l2_norm(heads(k * k_k, n_wkv), 1e-12);
        let ka = k * k_a;
        k += rate * ka - ka;
        let y = wkv7(heads(r, n_wkv), heads(w, n_wkv), heads(k, n_wkv), heads(v, n_wkv), neg(kk), kk * heads(rate, n_wkv));
        group_norm(y) + merge(heads(v, n_wkv) * sum_rows(heads(k * r * r_k, n_wkv)))
    }

    fn group_norm(y: [head_size, n_wkv, T]) {
        merge(layer_norm(y, 0.00064)) * ln + ln_b
    }

    fn time_mix_gate(h: [n_embd, T], step: [n_embd, T]) {
        g2(sigmoid(g1(h + step * part(lerp, 5))))
    }
}
