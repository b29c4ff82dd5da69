//! Hunyuan 4: several residual streams, of which each branch reads a mixture and writes back to all (hyper-connections), multi-head latent
//! attention with sinks and an output gate, in some layers with an indexer that chooses cells for the layers up to the next one.

arch_macros::arch! {
    name: "hy_v4";
    rope: norm;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        n_dense: usize = "leading_dense_block_count" or 0;
        n_ff_exp: [usize] = "expert_feed_forward_length";
        n_shared: usize = "expert_shared_count";
        swiglu_limit: [f32] = "swiglu_clamp_exp" or 0.0;
        q_rank: usize = "attention.q_lora_rank";
        kv_rank: usize = "attention.kv_lora_rank";
        dk: usize = "attention.key_length_mla";
        dv: usize = "attention.value_length_mla";
        check dk > n_rot, "attention.key_length_mla is above rope.dimension_count, its rotated part";
        let n_nope = dk - n_rot;
        n_stream: usize = "hyper_connection.count";
        stream_eps: f32 = "hyper_connection.epsilon";
        magnitude: f32 = "hyper_connection.magnitude";
        check n_stream > 0 && n_stream <= 64, "hyper_connection.count is 1 to 64";
        // Models that attend to everything have no indexer.
        n_selected: usize = "attention.indexer.top_k" or 0;
        index_heads: usize = "attention.indexer.head_count" or 0;
        index_dim: usize = "attention.indexer.key_length" or 0;
        indexer_here: [bool] = "attention.indexer.types" or false;
        let sparse = n_selected > 0;
        let indexes = n_selected > 0 && indexer_here;
        check !sparse || index_dim > n_rot, "attention.indexer.key_length is above rope.dimension_count";
        check !sparse || il > 0 || indexes, "attention.indexer.types begins with a layer that has an indexer";
    }

    tensors {
        use own_output, output_streams;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use latent_projections;
            sinks:    vector "attn_sinks" [n_head];
            out_gate: linear "attn_gate"  [n_embd -> n_head * dv];
            if indexes {
                use indexer;
            }
            attn_fn:    linear "hc_attn_fn"    [n_stream * n_embd -> 2 * n_stream];
            attn_base:  vector "hc_attn_base"  [2 * n_stream];
            attn_scale: vector "hc_attn_scale" [2];
            ffn_fn:     linear "hc_ffn_fn"     [n_stream * n_embd -> 2 * n_stream];
            ffn_base:   vector "hc_ffn_base"   [2 * n_stream];
            ffn_scale:  vector "hc_ffn_scale"  [2];
            if il < n_dense {
                use gated_ffn;
            } else {
                use selected_experts(usual_gating = 2), shared_experts(width = n_ff_exp * n_shared);
                override probs_bias?: raw "exp_probs_b.bias" [n_expert];
            }
        }
    }

    // The mixture of streams that a branch reads.
    fn read(x, mixes, scale, base) {
        sum_heads(x * heads(sigmoid(mixes * scale + base) + stream_eps, n_stream))
    }

    // What the result of a branch adds to each stream.
    fn written(y, mixes, scale, base) {
        let weights = sigmoid(mixes * scale + base) * magnitude + stream_eps;
        repeat_heads(heads(y, 1), n_stream) * heads(weights, n_stream)
    }

    fn attend(h) {
        let compressed = compressed_queries(h);
        let q = latent_queries(compressed);
        let k = latent_keys(h);
        let found = if sparse {
            let cells = selected(h, compressed);
            attention(q, k, v_in_k = kv_rank, scale = 1.0 / sqrt(dk), sinks = sinks, selection = cells)
        } else {
            attention(q, k, v_in_k = kv_rank, scale = 1.0 / sqrt(dk), sinks = sinks)
        };
        wo(merge(v_b(heads(found, n_head))) * sigmoid(out_gate(h)))
    }

    fn selected(h, compressed) {
        if indexes {
            let q = rope(heads(index_q(compressed), index_heads), offset = index_dim - n_rot);
            let k = layer_norm(index_k(h), index_k_norm, eps);
            index_cells(q, rope(heads(k, 1), offset = index_dim - n_rot), index_proj(h), n_selected)
        } else {
            rust!([n_selected, T] => b.indexed_cells())
        }
    }

    fn ffn_or_experts(h) {
        if il < n_dense { ffn(h) } else { chosen(h, limit = swiglu_limit) + shared(h) }
    }

    graph {
        let x = repeat_heads(heads(token_embd[tokens], 1), n_stream);
        for layer {
            let mixes = attn_fn(rms_norm(merge(x), eps));
            let h = read(x, mixes[..n_stream], attn_scale[..1], attn_base[..n_stream]);
            let y = attend(rms_norm(h, attn_norm, eps));
            x += written(y, mixes[n_stream..], attn_scale[1..], attn_base[n_stream..]);
            let mixes = ffn_fn(rms_norm(merge(x), eps));
            let h = read(x, mixes[..n_stream], ffn_scale[..1], ffn_base[..n_stream]);
            let y = ffn_or_experts(rms_norm(h, ffn_norm, eps));
            x += written(y, mixes[n_stream..], ffn_scale[1..], ffn_base[n_stream..]);
        }
        output(rms_norm(last_read(x), output_norm, eps))
    }

    test {
        n_embd: 128, n_head: 1, n_layer: 2, n_ff: 192, n_vocab: 128, n_dense: 1, n_ff_exp: 192, n_shared: 1, n_expert: 2, n_expert_used: 2,
        q_rank: 512, kv_rank: 512, dk: 192, dv: 128, n_stream: 4
    }
}
