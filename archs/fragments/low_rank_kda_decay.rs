//! Low-rank decays for `kimi_delta_attention`: with softplus, or between a negative `bound` and 0. `rate` is
//! `a` as `[1, heads]`.

fragment! {
    needs(d_kda: usize);

    tensors {
        decay_a: linear "ssm_f_a"     [n_embd -> d_kda];
        decay_b: linear "ssm_f_b"     [d_kda -> n_head_max * d_kda];
        dt_bias: raw    "ssm_dt.bias" [n_head_max * d_kda];
        a:       raw    "ssm_a"       [n_head_max];
    }

    fn kda_decay(x: [n_embd, T], rate: [1, n_head_max], bound = 0.0) {
        let decay = decay_b(decay_a(x)) + dt_bias;
        if bound < 0.0 {
            sigmoid(heads(decay, n_head_max) * -rate) * bound
        } else {
            heads(softplus(decay), n_head_max) * rate
        }
    }
}
