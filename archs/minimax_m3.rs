//! MiniMax M3: RMS norms per query and key head, partial rotary positions, and gpt-oss's clamped gate in
//! dense leading layers, experts, and the shared expert. After the dense layers, an indexer selects blocks of
//! positions for each group of heads.

arch_macros::arch! {
    name: "minimax-m3";
    rope: neox;

    hparams {
        n_dense: usize = "leading_dense_block_count" or 0;
        n_ff_exp: [usize] = "expert_feed_forward_length";
        n_shared: usize = "expert_shared_count";
        index_heads: usize = "attention.indexer.head_count";
        index_dim: usize = "attention.indexer.key_length";
        n_blocks: usize = "attention.indexer.top_k";
        block_size: usize = "attention.indexer.block_size";
        n_local: usize = "attention.indexer.local_blocks";
        check n_blocks > 0 && block_size > 0, "attention.indexer.top_k and attention.indexer.block_size must be at least 1";
        check n_rot <= index_dim, "attention.indexer.key_length must be at least rope.dimension_count";
        check il < n_dense || index_heads == n_head_kv, "attention.indexer.head_count must equal attention.head_count_kv";
    }

    tensors {
        use untied_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use qk_norm_attention;
            if il < n_dense {
                use gated_ffn;
            } else {
                use selected_experts(default_gating = 2), shared_experts(width = n_ff_exp * n_shared);
                index_q: linear "indexer.q_proj" [n_embd -> index_heads * index_dim];
                index_k: linear "indexer.k_proj" [n_embd -> index_dim];
                index_q_norm, index_k_norm: vector "indexer.q_norm", "indexer.k_norm" [index_dim];
            }
        }
    }

    fn selected(h) {
        let q = rope(rms_norm(heads(index_q(h), index_heads), index_q_norm));
        let k = rope(rms_norm(heads(index_k(h), 1), index_k_norm));
        index_blocks(q, k, n_blocks, block_size, n_local)
    }

    // Uses the limit of the published model, which files do not store.
    fn swiglu_oai(gates, ups) {
        gelu_quick(clamp(gates, -1000000000.0, 7.0)) * (clamp(ups, -7.0, 7.0) + 1.0)
    }

    graph {
        let x = with_media(token_embd[tokens]);
        for layer {
            let h = rms_norm(x, attn_norm);
            x += if il < n_dense { attend(h) } else { attend(h, selection = selected(h)) };
            let h = rms_norm(x, ffn_norm);
            if il < n_dense {
                x += down(swiglu_oai(gate(h), up(h)));
            } else {
                x += selected_experts(h, act = gelu_quick, limit = 7.0, up_offset = 1.0)
                    + down_shexp(swiglu_oai(gate_shexp(h), up_shexp(h)));
            }
        }
        output(rms_norm(x, output_norm))
    }

    test {
        n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_dense: 1, n_ff_exp: 384, n_shared: 1, n_expert: 2,
        n_expert_used: 2, n_head_kv: 2, index_heads: 2, index_dim: 128, n_blocks: 3, block_size: 4, n_local: 1
    }
}
