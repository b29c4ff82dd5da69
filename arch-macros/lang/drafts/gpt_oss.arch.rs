//! gpt-oss: attention sinks, windows on every second layer, experts with biases and a clamped gate.

name: "gpt-oss";
rope: neox;

hparams {
    eps: f32 = "attention.layer_norm_rms_epsilon";
    n_swa: usize = "attention.sliding_window";
    is_swa: pattern = "attention.sliding_window_pattern" or 2;
    n_ff_exp: [usize] = "expert_feed_forward_length";
}

tensors {
    token_embd:  embed  "token_embd"  [n_embd, n_vocab];
    output_norm: vector "output_norm" [n_embd];
    output:      linear "output"      [n_embd -> n_vocab];

    layer {
        attn_norm:      vector  "attn_norm"           [n_embd];
        wq:             linear  "attn_q"              [n_embd -> n_head * head_dim];
        wk:             linear  "attn_k"              [n_embd -> n_head_kv * head_dim];
        wv:             linear  "attn_v"              [n_embd -> n_head_kv * head_dim_v];
        sinks:          vector  "attn_sinks"          [n_head];
        wo:             linear  "attn_output"         [n_head * head_dim_v -> n_embd];
        attn_post_norm: vector  "post_attention_norm" [n_embd];
        router:         linear  "ffn_gate_inp"        [n_embd -> n_expert];
        gate_exps:      experts "ffn_gate_exps"       [n_embd -> n_ff_exp; n_expert];
        up_exps:        experts "ffn_up_exps"         [n_embd -> n_ff_exp; n_expert];
        down_exps:      experts "ffn_down_exps"       [n_ff_exp -> n_embd; n_expert];
    }
}

graph {
    let x = token_embd[tokens];
    for layer {
        let h = rms_norm(x, attn_norm, eps);
        let q = rope(heads(wq(h), n_head));
        let k = rope(heads(wk(h), n_head_kv));
        let v = heads(wv(h), n_head_kv);
        x += wo(attention(q, k, v, sinks = sinks, window = sliding(n_swa, is_swa)));
        let h = rms_norm(x, attn_post_norm, eps);
        x += moe(h, router = router(h), gate = gate_exps, up = up_exps, down = down_exps, act = swiglu_clamped,
                 gating = softmax_weight, n_used = n_expert_used, norm_weights = false);
    }
    output(rms_norm(x, output_norm, eps))
}

test {
    n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_swa: 32, n_ff_exp: 384, n_expert: 2, n_expert_used: 2
}
