//! DeepSeek V2, V3 and R1: multi-head latent attention, fine-grained experts with shared ones.

name: "deepseek2";
rope: norm;

hparams {
    eps: f32 = "attention.layer_norm_rms_epsilon";
    n_layer_dense: usize = "leading_dense_block_count" or 0;
    n_ff_exp: [usize] = "expert_feed_forward_length";
    n_shared: usize = "expert_shared_count" or 0;
    q_rank: usize = "attention.q_lora_rank" or 0;
    kv_rank: usize = "attention.kv_lora_rank";
    head_dim_mla: usize = "attention.key_length_mla";
    value_dim_mla: usize = "attention.value_length_mla";
    gating_kind: usize = "expert_gating_func" or 1;
    norm_weights: bool = "expert_weights_norm" or false;
    weights_scale: f32 = "expert_weights_scale" or 1.0;
    log_mul: f32 = "rope.scaling.yarn_log_multiplier" or 0.0;
    let n_nope = head_dim_mla - n_rot;
    let mscale = 1.0 + log_mul * ln(1.0 / rope_freq_scale);
    let kq_scale = mscale * mscale / sqrt(head_dim_mla);
    check head_dim_mla > n_rot, "a head has a part that is not rotated";
}

tensors {
    token_embd:  embed  "token_embd"  [n_embd, n_vocab];
    output_norm: vector "output_norm" [n_embd];
    output:      linear "output"      [n_embd -> n_vocab] or token_embd;

    layer {
        attn_norm: vector "attn_norm" [n_embd];
        if q_rank > 0 {
            wq_a:     linear "attn_q_a"      [n_embd -> q_rank];
            q_a_norm: vector "attn_q_a_norm" [q_rank];
            wq_b:     linear "attn_q_b"      [q_rank -> n_head * head_dim_mla];
        } else {
            wq: linear "attn_q" [n_embd -> n_head * head_dim_mla];
        }
        wkv_a:     linear  "attn_kv_a_mqa"  [n_embd -> kv_rank + n_rot];
        kv_a_norm: vector  "attn_kv_a_norm" [kv_rank];
        wk_b:      experts "attn_k_b"       [n_nope -> kv_rank; n_head];
        wv_b:      experts "attn_v_b"       [kv_rank -> value_dim_mla; n_head];
        wo:        linear  "attn_output"    [n_head * value_dim_mla -> n_embd];
        ffn_norm:  vector  "ffn_norm"       [n_embd];
        if il < n_layer_dense {
            gate: linear "ffn_gate" [n_embd -> n_ff];
            up:   linear "ffn_up"   [n_embd -> n_ff];
            down: linear "ffn_down" [n_ff -> n_embd];
        } else {
            router:         linear  "ffn_gate_inp"     [n_embd -> n_expert];
            selection_bias?: raw    "exp_probs_b.bias" [n_expert];
            gate_exps:      experts "ffn_gate_exps"    [n_embd -> n_ff_exp; n_expert];
            up_exps:        experts "ffn_up_exps"      [n_embd -> n_ff_exp; n_expert];
            down_exps:      experts "ffn_down_exps"    [n_ff_exp -> n_embd; n_expert];
            gate_shexp:     linear  "ffn_gate_shexp"   [n_embd -> n_ff_exp * n_shared];
            up_shexp:       linear  "ffn_up_shexp"     [n_embd -> n_ff_exp * n_shared];
            down_shexp:     linear  "ffn_down_shexp"   [n_ff_exp * n_shared -> n_embd];
        }
    }
}

graph {
    let x = token_embd[tokens];
    for layer {
        let h = rms_norm(x, attn_norm, eps);
        let q = if q_rank > 0 { wq_b(rms_norm(wq_a(h), q_a_norm, eps)) } else { wq(h) };
        let q = heads(q, n_head);
        let kv = wkv_a(h);
        // The latent stands for keys and values of every head; each head's query is moved into its space.
        let latent = heads(rms_norm(kv[..kv_rank], kv_a_norm, eps), 1);
        let k_rot = rope(heads(kv[kv_rank..], 1));
        let q_latent = per_head(q[..n_nope], wk_b);
        let q = concat(rope(q[n_nope..]), q_latent);
        let k = concat(k_rot, latent);
        let attn = heads(attention(q, k, latent, scale = kq_scale), n_head);
        x += wo(merge(per_head(attn, wv_b)));
        let h = rms_norm(x, ffn_norm, eps);
        if il < n_layer_dense {
            x += down(silu(gate(h)) * up(h));
        } else {
            let routed = if gating_kind == 1 {
                moe(h, router = router(h), gate = gate_exps, up = up_exps, down = down_exps, act = silu,
                    gating = softmax, n_used = n_expert_used, norm_weights = norm_weights, scale = weights_scale)
            } else {
                moe(h, router = router(h), gate = gate_exps, up = up_exps, down = down_exps, act = silu,
                    gating = sigmoid, n_used = n_expert_used, norm_weights = norm_weights, scale = weights_scale,
                    selection_bias = selection_bias)
            };
            x += routed + down_shexp(silu(gate_shexp(h)) * up_shexp(h));
        }
    }
    output(rms_norm(x, output_norm, eps))
}

test {
    n_embd: 128, n_head: 1, n_layer: 2, n_ff: 192, n_vocab: 128, n_layer_dense: 1, n_ff_exp: 192, kv_rank: 512,
    head_dim_mla: 192, value_dim_mla: 128, n_expert: 2, n_expert_used: 2, n_shared: 1
}
