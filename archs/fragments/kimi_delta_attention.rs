//! Kimi delta attention (KDA, arXiv 2510.26692): a delta rule with a decay per channel after short
//! convolutions of queries, keys, and values. The declaration computes the decays and the output gate.

fragment! {
    hparams {
        d_conv: usize = "ssm.conv_kernel";
        d_kda: usize = "kda.head_dim";
    }

    tensors {
        // Files may contain biases that the models do not use.
        ignore "attn_q.bias", "attn_k.bias", "attn_v.bias";
        wq, wk, wv: linear "attn_q", "attn_k", "attn_v" [n_embd -> n_head_max * d_kda];
        q_conv: vector "ssm_conv1d_q" [d_conv, 1, n_head_max * d_kda];
        k_conv: vector "ssm_conv1d_k" [d_conv, 1, n_head_max * d_kda];
        v_conv: vector "ssm_conv1d_v" [d_conv, 1, n_head_max * d_kda];
        beta:   linear "ssm_beta"     [n_embd -> n_head_max];
        y_norm: vector "ssm_norm"     [d_kda];
        wy:     linear "attn_output"  [n_head_max * d_kda -> n_embd];
    }

    fn kda(x: [n_embd, T], decay: [_, n_head_max, T], l2_eps = rms_norm_eps) {
        let q = heads(silu(short_conv(wq(x), q_conv)), n_head_max);
        let k = heads(silu(short_conv(wk(x), k_conv)), n_head_max);
        let v = heads(silu(short_conv(wv(x), v_conv)), n_head_max);
        let y = linear_attention(rms_norm(q, l2_eps / d_kda) / sqrt(d_kda), rms_norm(k, l2_eps / d_kda) / sqrt(d_kda), v,
                                 decay = decay, beta = heads(sigmoid(beta(x)), n_head_max), delta = true);
        merge(rms_norm(y, y_norm))
    }
}
