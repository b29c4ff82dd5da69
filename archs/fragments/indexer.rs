//! An indexer, which chooses the cells that a token attends to by keys and queries of its own; those come from the compressed queries of
//! latent attention. How they rotate is the declaration's.

fragment! {
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
}
