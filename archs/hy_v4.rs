//! Hunyuan 4: hyper-connections over several residual streams, and multi-head latent attention with sinks and
//! an output gate. Indexers in some layers select the cells for all layers up to the next indexer.

arch_macros::arch! {
    name: "hy_v4";
    rope: norm;

    hparams {
        n_dense: usize = "leading_dense_block_count" or 0;
        n_ff_exp: [usize] = "expert_feed_forward_length";
        n_shared: usize = "expert_shared_count";
        swiglu_limit: [f32] = "swiglu_clamp_exp" or 0.0;
        n_stream: usize = "hyper_connection.count";
        stream_eps: f32 = "hyper_connection.epsilon";
        magnitude: f32 = "hyper_connection.magnitude";
        check n_stream > 0 && n_stream <= 64, "hyper_connection.count must be 1 to 64";
        // Models with dense attention have no indexer.
        n_selected: usize = "attention.indexer.top_k" or 0;
        index_heads: usize = "attention.indexer.head_count" or 0;
        index_dim: usize = "attention.indexer.key_length" or 0;
        indexer_here: [bool] = "attention.indexer.types" or false;
        let sparse = n_selected > 0;
        let indexes = n_selected > 0 && indexer_here;
        check !sparse || index_dim > n_rot, "attention.indexer.key_length must be greater than rope.dimension_count";
        check !sparse || il > 0 || indexes, "attention.indexer.types must start with a layer that has an indexer";
    }

    tensors {
        use untied_output, output_streams;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use latent_attention(low_rank_queries = true);
            sinks:    vector "attn_sinks" [n_head];
            out_gate: linear "attn_gate"  [n_embd -> n_head * mla_head_dim_v];
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
                use selected_experts(default_gating = 2), shared_experts(width = n_ff_exp * n_shared);
                override probs_bias?: raw "exp_probs_b.bias" [n_expert];
            }
        }
    }

    // Input of a branch: a weighted sum of the streams.
    fn hc_pre(x, mixes, scale, base) {
        sum_heads(x * heads(sigmoid(mixes * scale + base) + stream_eps, n_stream))
    }

    // Contribution of a branch's output to each stream.
    fn hc_post(y, mixes, scale, base) {
        let weights = sigmoid(mixes * scale + base) * magnitude + stream_eps;
        repeat_heads(heads(y, 1), n_stream) * heads(weights, n_stream)
    }

    fn attend(h) {
        let compressed = compressed_queries(h);
        let y = attend_latent_heads(h, heads(q_b(compressed), n_head), sinks = sinks,
                                    selection = if sparse { selected(h, compressed) });
        wo(merge(y) * sigmoid(out_gate(h)))
    }

    fn selected(h, compressed) {
        if indexes {
            select_cells(h, compressed, norm_eps = rms_norm_eps, offset = index_dim - n_rot)
        } else {
            shared_selection(n_selected)
        }
    }

    fn ffn_or_experts(h) {
        if il < n_dense { ffn(h) } else { selected_experts(h, limit = swiglu_limit) + shared_experts(h) }
    }

    graph {
        let x = repeat_heads(heads(token_embd[tokens], 1), n_stream);
        for layer {
            let mixes = attn_fn(rms_norm(merge(x)));
            let h = hc_pre(x, mixes[..n_stream], attn_scale[..1], attn_base[..n_stream]);
            let y = attend(rms_norm(h, attn_norm));
            x += hc_post(y, mixes[n_stream..], attn_scale[1..], attn_base[n_stream..]);
            let mixes = ffn_fn(rms_norm(merge(x)));
            let h = hc_pre(x, mixes[..n_stream], ffn_scale[..1], ffn_base[..n_stream]);
            let y = ffn_or_experts(rms_norm(h, ffn_norm));
            x += hc_post(y, mixes[n_stream..], ffn_scale[1..], ffn_base[n_stream..]);
        }
        output(rms_norm(hc_head(x), output_norm))
    }

    test {
        n_embd: 128, n_head: 1, n_layer: 2, n_ff: 192, n_vocab: 128, n_dense: 1, n_ff_exp: 192, n_shared: 1, n_expert: 2, n_expert_used: 2,
        q_rank: 512, kv_rank: 512, key_length_mla: 192, value_length_mla: 128, n_stream: 4
    }
}
