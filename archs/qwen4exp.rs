//! Qwen 4, experimental: Qwen3.5 layers over several residual streams, which each branch reads through
//! low-rank gates and writes with its own weights. One layer adds embeddings of hashed n-grams, and attention
//! may be restricted to selected blocks of tokens.

arch_macros::arch! {
    name: "qwen4exp";
    like: "qwen35moe";

    hparams {
        check n_expert > 0 && n_expert_used > 0, "expert_count and expert_used_count must be at least 1";
        n_stream: usize = "hyper_connection.count";
        n_low: usize = "hyper_connection.low_rank";
        check n_stream > 1 && n_stream <= 64 && n_low > 0, "hyper_connection.count must be 2 to 64, hyper_connection.low_rank at least 1";
        // Index of the layer with n-gram embeddings, if any.
        hash_layers: [usize; 0..] = "ple.layers";
        let n_hashing = count(hash_layers);
        let hash_layer = first(hash_layers);
        let hashes = n_hashing > 0 && il == hash_layer;
        check n_hashing <= 1 && hash_layer < n_layer, "ple.layers must contain at most one layer";
        check !hashes || is_recurrent, "ple.layers must contain a layer of attention.recurrent_layers";
        longest: usize = "ple.ngram_size" or 1;
        per_length: usize = "ple.heads_per_ngram" or 0;
        n_conv: usize = "ple.conv_kernel" or 0;
        end: usize = "ple.eos_token_id" or n_vocab;
        check n_hashing == 0 || end < n_vocab && n_vocab < 16777216, "ple.eos_token_id must be a token id, and vocab_size less than 2^24";
        width: usize = "embedding_length_per_layer_input" or 0;
        let n_hash = (longest - 1) * per_length;
        check n_hashing == 0 || longest > 1 && longest <= 8 && n_hash > 0 && n_hash <= 64 && n_conv > 1,
              "ple.ngram_size must be 2 to 8, (ple.ngram_size - 1) * ple.heads_per_ngram 1 to 64, and ple.conv_kernel at least 2";
        check n_hashing == 0 || n_hash * width == n_embd,
              "embedding_length must equal embedding_length_per_layer_input * (ple.ngram_size - 1) * ple.heads_per_ngram";
        multipliers: [usize; longest * n_hashing..] = "ple.layer_multipliers";
        offsets: [usize; n_hash * n_hashing..] = "ple.head_offsets";
        sizes: [usize; n_hash * n_hashing..] = "ple.head_vocab_sizes";
        let n_hashed = max_sum(offsets, sizes, n_hash);
        // Block size of sparse attention; 0 for full attention.
        block: [usize] = "attention.compress_ratios" or 0;
        let sparse = !is_recurrent && block > 0;
        n_chosen: usize = "attention.indexer.top_k";
        index_heads: usize = "attention.indexer.head_count";
        index_dim: usize = "attention.indexer.key_length";
        check block == 0 || block > 1 && block <= 256 && n_chosen >= block && n_chosen % block == 0,
              "attention.compress_ratios must be 2 to 256 and divide attention.indexer.top_k";
        check block == 0 || n_rot <= index_dim, "attention.indexer.key_length must be at least rope.dimension_count";
    }

    tensors {
        without output_norm;
        head_norm: vector "output_hc_norm" [n_embd, n_stream];
        head_down: linear "output_hc_down" [n_stream * n_embd -> n_low];
        head_up:   linear "output_hc_up"   [n_low -> n_stream * n_embd];
        if n_hashing > 0 {
            hash_embd: embed "per_layer_token_embd" [width, n_hashed..];
        }

        layer {
            without attn_norm, ffn_norm, gate, up, down, eh_proj, enorm, hnorm, mtp_embd, mtp_norm, mtp_output;
            mixer_norm, ffn_norm: vector "hc_attn_norm", "hc_ffn_norm" [n_embd, n_stream];
            mixer_down, ffn_down: linear "hc_attn_down", "hc_ffn_down" [n_stream * n_embd -> n_low];
            mixer_up, ffn_up: linear "hc_attn_up", "hc_ffn_up" [n_low -> n_stream * n_embd];
            mixer_inject, ffn_inject: linear "hc_attn_inject", "hc_ffn_inject" [n_stream * n_embd -> n_stream];
            if hashes {
                hash_key:   linear "ple_key"    [n_hash * width -> n_stream * n_embd];
                hash_value: linear "ple_value"  [n_hash * width -> n_embd];
                hash_conv:  vector "ple_conv1d" [n_conv, n_stream * n_embd];
                key_norm, query_norm, conv_norm: vector "ple_norm_key", "ple_norm_query", "ple_norm_conv" [n_embd, n_stream];
            }
            ignore "attn_q.bias", "attn_k.bias", "attn_v.bias"; // optional in files; not used by the model
            if sparse {
                index_q: linear "indexer.q_proj" [n_embd -> index_heads * index_dim];
                index_k: linear "indexer.k_proj" [n_embd -> index_dim];
                index_q_norm, index_k_norm: vector "indexer.q_norm", "indexer.k_norm" [index_dim];
            } else {
                ignore "indexer.q_proj", "indexer.k_proj", "indexer.q_norm", "indexer.k_norm";
            }
        }
    }

    fn hc_pre(h, lower = head_down, raise = head_up) {
        sum_heads(heads(h * sigmoid(raise(silu(lower(h) / n_stream))), n_stream)) / n_stream
    }

    fn hc_post(y, weights) {
        repeat_heads(heads(y, 1), n_stream) * heads(sigmoid(weights / n_stream) * 2.0, n_stream)
    }

    // Returns the n-gram embeddings for the streams, weighted by a gate per stream.
    fn ngram_embeddings(x) {
        let found = ngram_embed(hash_embd, longest = longest, per_length = per_length, multipliers = multipliers,
                                offsets = offsets, sizes = sizes, end = end);
        let key = rms_norm(heads(hash_key(found), n_stream)) * key_norm;
        let fit = sum_rows(key * (rms_norm(x) * query_norm)) / sqrt(n_embd);
        let sign = clamp(fit * 1e38, -1.0, 1.0);
        let value = repeat_heads(heads(hash_value(found), 1), n_stream) * sigmoid(sign * sqrt(clamp(abs(fit), 0.000001, 3e38)));
        let normed = merge(rms_norm(value) * conv_norm);
        value + heads(silu(dilated_conv(normed, hash_conv, longest)), n_stream)
    }

    // The key of a block is the mean of its tokens' keys, rotated at the position of the first token. All
    // heads have equal weight.
    fn select_cells(h) {
        let mean = sum_heads(last_tokens(index_k(h), block)) / block;
        let key = rope(heads(rms_norm(mean, index_k_norm), 1), lag = block - 1);
        let q = rope(rms_norm(heads(index_q(h), index_heads), index_q_norm));
        index_pools(q, key, merge(sum_rows(q) * 0.0 + 1.0), n_chosen, block, true)
    }

    graph {
        let x = repeat_heads(heads(token_embd[tokens], 1), n_stream);
        for layer {
            if n_hashing > 0 && hashes {
                x += ngram_embeddings(x);
            }
            let h = merge(rms_norm(x) * mixer_norm);
            let y = hc_pre(h, lower = mixer_down, raise = mixer_up);
            let y = if is_recurrent {
                delta_net(y, act = sigmoid)
            } else {
                attend(y, selection = if sparse { select_cells(y) })
            };
            x += hc_post(y, mixer_inject(h));
            let h = merge(rms_norm(x) * ffn_norm);
            if n_expert > 0 {
                x += hc_post(experts(hc_pre(h, lower = ffn_down, raise = ffn_up)), ffn_inject(h));
            }
        }
        output(hc_pre(merge(rms_norm(x) * head_norm)))
    }

    test {
        n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, interval: 2, d_conv: 4,
        d_inner: 256, d_state: 128, n_value: 2, n_key: 2, n_stream: 4, n_low: 8, n_chosen: 131072,
        index_heads: 64, index_dim: 128
    }
}
