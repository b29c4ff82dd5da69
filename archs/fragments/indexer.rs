//! Indexer of DeepSeek sparse attention: selects the cells that a token attends to with its own keys and
//! queries. The queries are computed from the compressed queries of `latent_attention`.

fragment! {
    needs(q_rank: usize);

    hparams {
        index_heads: usize = "attention.indexer.head_count";
        index_dim: usize = "attention.indexer.key_length";
        n_selected: usize = "attention.indexer.top_k";
    }

    tensors {
        index_q:      linear "indexer.attn_q_b" [q_rank -> index_heads * index_dim];
        index_k:      linear "indexer.attn_k"   [n_embd -> index_dim];
        index_k_norm: norm   "indexer.k_norm"   [index_dim];
        index_proj:   linear "indexer.proj"     [n_embd -> index_heads];
    }

    fn select_cells(x: [n_embd, T], compressed: [q_rank, T], norm_eps = 0.000001, ..) {
        let q = rope(heads(index_q(compressed), index_heads), ..);
        let k = rope(heads(layer_norm(index_k(x), index_k_norm, norm_eps), 1), ..);
        index_cells(q, k, index_proj(x), n_selected)
    }
}
