//! DeepSeek V4: hyper-connections over four residual streams. Attention covers a short window and, beyond it,
//! groups of tokens compressed to one key each; an indexer selects among small groups. Keys also serve as
//! values after an inverse rotation. The first layers select experts by token id.

arch_macros::arch! {
    name: "deepseek4";
    rope: norm;

    hparams {
        q_rank: usize = "attention.q_lora_rank";
        n_window: usize = "attention.sliding_window";
        check n_window > 0, "attention.sliding_window must be at least 1";
        check n_head_kv == 1 && head_dim_v == head_dim, "attention.head_count_kv must be 1, and keys and values must have the same length";
        o_rank: usize = "attention.output_lora_rank";
        o_groups: usize = "attention.output_group_count";
        let o_heads = n_head_max / o_groups;
        check o_heads * o_groups == n_head, "attention.output_group_count must divide attention.head_count";

        ratio: [usize] = "attention.compress_ratios";
        check ratio == 0 || ratio == 4 || ratio == 128, "attention.compress_ratios must be 0, 4, or 128";
        // Small groups also average over the preceding group.
        let n_means = if ratio == 4 { 2 } else { 1 };
        index_heads: usize = "attention.indexer.head_count";
        index_dim: usize = "attention.indexer.key_length";
        n_selected: usize = "attention.indexer.top_k";
        check n_selected > 0 && index_dim >= n_rot, "attention.indexer.top_k must be > 0, attention.indexer.key_length >= rope dimensions";

        compress_base: f32 = "attention.compress_rope_freq_base";
        let base = if ratio > 0 { compress_base } else { rope_freq_base };
        let scale = if ratio > 0 { rope_freq_scale } else { 1.0 };
        // Cancels YaRN's attention factor, because values must keep their magnitude.
        let magnitude = if rope_yarn && ratio > 0 { 1.0 / (1.0 + 0.1 * ln(1.0 / rope_freq_scale)) } else { 1.0 };

        n_hash: usize = "hash_layer_count";
        n_ff_exp: [usize] = "expert_feed_forward_length";
        n_shared: usize = "expert_shared_count";
        limit: [f32] = "swiglu_clamp_exp";
        limit_of_file: [f32] = "swiglu_clamp_shexp" or limit;
        check gating == 4, "expert_gating_func must be 4";
    }

    tensors {
        use untied_output, output_streams;

        layer {
            use hyper_connections, activation_limits;
            attn_norm, ffn_norm: vector [n_embd];
            sinks:    vector   "attn_sinks"     [o_heads * o_groups];
            q_a:      linear   "attn_q_a"       [n_embd -> q_rank];
            q_a_norm: vector   "attn_q_a_norm"  [q_rank];
            q_b:      linear   "attn_q_b"       [q_rank -> o_heads * o_groups * head_dim];
            wkv:      linear   "attn_kv"        [n_embd -> head_dim];
            kv_norm:  vector   "attn_kv_a_norm" [head_dim];
            o_a:      per_head "attn_output_a"  [o_heads * head_dim -> o_rank; o_groups];
            o_b:      linear   "attn_output_b"  [o_groups * o_rank -> n_embd];
            if ratio > 0 {
                group_kv:     linear "attn_compressor_kv"   [n_embd -> n_means * head_dim];
                group_gate:   linear "attn_compressor_gate" [n_embd -> n_means * head_dim];
                group_places: vector "attn_compressor_ape"  [n_means * head_dim, ratio];
                group_norm:   vector "attn_compressor_norm" [head_dim];
            }
            if ratio == 4 {
                index_q:      linear "indexer.attn_q_b"        [q_rank -> index_heads * index_dim];
                index_proj:   linear "indexer.proj"            [n_embd -> index_heads];
                index_kv:     linear "indexer_compressor_kv"   [n_embd -> 2 * index_dim];
                index_gate:   linear "indexer_compressor_gate" [n_embd -> 2 * index_dim];
                index_places: vector "indexer_compressor_ape"  [2 * index_dim, ratio];
                index_norm:   vector "indexer_compressor_norm" [index_dim];
            }
            use experts(width = n_ff_exp), expert_routing, shared_experts(width = n_ff_exp * n_shared);
            if il < n_hash {
                token_experts: embed "ffn_gate_tid2eid" [n_expert_used, n_vocab];
            } else {
                probs_bias: raw "exp_probs_b.bias" [n_expert];
            }
            // Selection bias for image tokens.
            ignore "exp_probs_b_vl";
        }
    }

    fn rotate(x, offset = head_dim - n_rot, stride?, inverse = false) {
        rope(x, base = base, scale = scale, yarn = ratio > 0, magnitude = magnitude, offset = offset, stride = stride, inverse = inverse)
    }

    fn attend(h) {
        let compressed = rms_norm(q_a(h), q_a_norm);
        let q = rotate(rms_norm(heads(q_b(compressed), o_heads * o_groups)));
        let kv = rotate(heads(rms_norm(wkv(h), kv_norm), 1));
        let y = if ratio > 0 {
            let groups = rms_norm(compress(group_kv(h), group_gate(h), group_places, head_dim), group_norm);
            let groups = rotate(heads(groups, 1), stride = ratio);
            if ratio == 4 {
                attention(q, kv, v_in_k = head_dim, sinks = sinks, window = sliding(n_window, true), compressed = groups,
                          ratio = ratio, selection = selected(h, compressed))
            } else {
                attention(q, kv, v_in_k = head_dim, sinks = sinks, window = sliding(n_window, true), compressed = groups,
                          ratio = ratio)
            }
        } else {
            attention(q, kv, v_in_k = head_dim, sinks = sinks, window = sliding(n_window, true))
        };
        let y = merge(rotate(heads(y, o_heads * o_groups), inverse = true));
        o_b(merge(o_a(heads(y, o_groups))))
    }

    fn selected(h, compressed) {
        let q = rotate(heads(index_q(compressed), index_heads), offset = index_dim - n_rot);
        let k = rms_norm(compress(index_kv(h), index_gate(h), index_places, index_dim), index_norm);
        let k = rotate(heads(k, 1), offset = index_dim - n_rot, stride = ratio);
        index_cells(q, k, index_proj(h), n_selected, ratio)
    }

    fn routed_experts(h) {
        if il < n_hash {
            routed_by_keys(h, limit = limit, ids = token_experts[tokens])
        } else {
            routed_by_keys(h, limit = limit, selection_bias = probs_bias)
        }
    }

    fn limited_glu(gate, up) {
        silu(clamp(gate, -3e38, limit_shexp)) * clamp(up, -limit_shexp, limit_shexp)
    }

    graph {
        let x = repeat_heads(heads(token_embd[tokens], 1), n_stream);
        for layer {
            let weights = attn_streams(rms_norm(merge(x)));
            let h = rms_norm(hc_pre(x, weights, attn_base, attn_scale), attn_norm);
            x = hc_post(x, attend(h), weights, attn_base, attn_scale);

            let weights = ffn_streams(rms_norm(merge(x)));
            let h = rms_norm(hc_pre(x, weights, ffn_base, ffn_scale), ffn_norm);
            let y = routed_experts(h) + down_shexp(limited_glu(gate_shexp(h), up_shexp(h)));
            x = hc_post(x, y, weights, ffn_base, ffn_scale);
        }
        output(rms_norm(hc_head(x), output_norm))
    }

    test {
        n_embd: 64, n_head: 4, n_head_kv: 1, n_layer: 3, n_ff: 64, n_vocab: 128, n_expert: 4, n_expert_used: 2, q_rank: 32,
        n_window: 8, o_rank: 16, o_groups: 2, ratio: 4, index_heads: 4, index_dim: 32, n_selected: 4, n_hash: 1, n_ff_exp: 48,
        n_shared: 1, n_stream: 4, n_sinkhorn: 2, gating_func: 4
    }
}
