//! DeepSeek V2, V3 and R1 and models of their kind (Kimi K2, GLM 4.7 Flash, GigaChat, Kanana 2): multi-head latent attention, whose cache
//! holds one compressed vector per token, and fine-grained experts beside shared ones. Old files hold the projection of keys
//! and values in one tensor, and are computed with keys and values of all heads.

arch_macros::arch! {
    name: "deepseek2";
    rope: norm;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        n_dense: usize = "leading_dense_block_count" or 0;
        n_ff_exp: [usize] = "expert_feed_forward_length";
        n_shared: usize = "expert_shared_count";
        // The small models project queries at once. Their files may tell a rank all the same.
        let lite = n_layer == 26 || n_layer == 27 || (n_layer == 48 && n_vocab == 128256);
        q_rank_of_file: usize = "attention.q_lora_rank" or 0;
        let q_rank = if lite { 0 } else { q_rank_of_file };
        kv_rank: usize = "attention.kv_lora_rank";
        key_length_mla: usize = "attention.key_length_mla" or 0;
        value_length_mla: usize = "attention.value_length_mla" or 0;
        check (key_length_mla == 0) == (value_length_mla == 0), "attention.key_length_mla and attention.value_length_mla are both there or both not";
        // The latent vector stands for the keys and values of all heads, and the files' own head sizes are those of the cache.
        let latent = key_length_mla > 0;
        let dk = if latent { key_length_mla } else { head_dim };
        let dv = if latent { value_length_mla } else { head_dim_v };
        check dk > n_rot, "attention.key_length_mla, or attention.key_length, is more than rope.dimension_count";
        let n_nope = dk - n_rot;
        temperature: f32 = "attention.temperature_scale" or 0.0;
        temperature_length: usize = "attention.temperature_length" or 0;
        check temperature == 0.0 || temperature_length > 0, "attention.temperature_length is not 0 where attention.temperature_scale is given";
        attn_factor: f32 = "rope.scaling.attn_factor" or 1.0;
        // A tenth of the factors by which YaRN sharpens attention over longer contexts: on rotated elements, where it is cancelled,
        // and on all scores.
        log_mul: f32 = "rope.scaling.yarn_log_multiplier" or 0.0;
        let sharper = 1.0 + 0.1 * ln(1.0 / rope_freq_scale);
        let magnitude = if rope_yarn && log_mul != 0.0 { attn_factor / sharper } else { attn_factor };
        let mscale = magnitude * sharper * (1.0 + log_mul * ln(1.0 / rope_freq_scale));
        let kq_scale = mscale * mscale / sqrt(dk);
    }

    tensors {
        use tied_output;

        layer {
            attn_norm: vector "attn_norm" [n_embd];
            if q_rank > 0 {
                q_a:      linear "attn_q_a"      [n_embd -> q_rank];
                q_a_norm: vector "attn_q_a_norm" [q_rank];
                q_b:      linear "attn_q_b"      [q_rank -> n_head * dk];
            } else {
                wq: linear "attn_q" [n_embd -> n_head * dk];
            }
            kv_a:      linear "attn_kv_a_mqa"  [n_embd -> kv_rank + n_rot];
            kv_a_norm: vector "attn_kv_a_norm" [kv_rank];
            if latent {
                k_b: per_head "attn_k_b" [n_nope -> kv_rank; n_head];
                v_b: per_head "attn_v_b" [kv_rank -> dv; n_head];
            } else {
                kv_b: linear "attn_kv_b" [kv_rank -> n_head * (n_nope + dv)];
            }
            wo:       linear "attn_output" [n_head * dv -> n_embd];
            ffn_norm: vector "ffn_norm"    [n_embd];
            if il < n_dense {
                use gated_ffn;
            } else {
                router: linear "ffn_gate_inp" [n_embd -> n_expert];
                // Files without a word on it mean softmax, but for GLM 4.7 Flash.
                use expert_routing(usual_gating = if (n_layer == 47 || n_layer == 48) && n_vocab == 154880 { 2 } else { 1 });
                probs_bias?: raw "exp_probs_b.bias" [n_expert];
                use fused_expert_stacks, shared_experts(width = n_ff_exp * n_shared);
            }
        }
    }

    fn attend(h) {
        let q = if q_rank > 0 { q_b(rms_norm(q_a(h), q_a_norm, eps)) } else { wq(h) };
        if latent { attend_latent(h, q) } else { attend_heads(h, q) }
    }

    fn rotated(q) {
        let q = heads(q, n_head);
        if temperature != 0.0 {
            q = q * attention_temperature(temperature, temperature_length, 0.0);
        }
        rope(q, offset = n_nope, magnitude = magnitude)
    }

    // Queries move into the space of the latent vector, and what they find there back into that of their head.
    fn attend_latent(h, q, selection?) {
        let q = rotated(q);
        let q = concat(k_b(q[..n_nope]), q[n_nope..]);
        let kv = kv_a(h);
        let k_rope = rope(heads(kv[kv_rank..], 1), magnitude = magnitude);
        let k = concat(heads(rms_norm(kv[..kv_rank], kv_a_norm, eps), 1), k_rope);
        wo(merge(v_b(heads(attention(q, k, v_in_k = kv_rank, scale = kq_scale, selection = selection), n_head))))
    }

    fn attend_heads(h, q) {
        let compressed = kv_a(h);
        let k_rope = rope(heads(compressed[kv_rank..], 1), magnitude = magnitude);
        let kv = heads(kv_b(rms_norm(compressed[..kv_rank], kv_a_norm, eps)), n_head);
        let k = concat(kv[..n_nope], repeat_heads(k_rope, n_head));
        wo(attention(rotated(q), k, kv[n_nope..], scale = kq_scale))
    }

    fn ffn_or_experts(h) {
        if il < n_dense {
            ffn(h)
        } else {
            routed_as_said(h, gate_up = gate_up_exps, selection_bias = probs_bias) + shared(h)
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(rms_norm(x, attn_norm, eps));
            x += ffn_or_experts(rms_norm(x, ffn_norm, eps));
        }
        output(rms_norm(x, output_norm, eps))
    }

    test {
        n_embd: 128, n_head: 1, n_layer: 2, n_ff: 192, n_vocab: 128, n_dense: 1, n_ff_exp: 192, kv_rank: 512, q_rank_of_file: 512,
        key_length_mla: 192, value_length_mla: 128, n_expert: 2, n_expert_used: 2, n_shared: 1
    }
}
