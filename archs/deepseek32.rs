//! DeepSeek V3.2: DeepSeek V3 with sparse attention. In each layer, an indexer with its own keys selects the
//! cells that a token attends to.

arch_macros::arch! {
    name: "deepseek32";
    like: "deepseek2";

    hparams {
        without q_rank_of_file;
        q_rank: usize = "attention.q_lora_rank";
        gating_func: usize = "expert_gating_func";
        let gating = gating_func;
        check key_length_mla > 0, "attention.key_length_mla and attention.value_length_mla must be set";
        check n_selected > 0, "attention.indexer.top_k must be at least 1";
        check n_rot <= index_dim, "attention.indexer.key_length must be at least rope.dimension_count";
        let magnitude = if rope_yarn { attn_factor / (1.0 + log_mul * ln(1.0 / rope_freq_scale)) } else { attn_factor };
    }

    tensors {
        layer {
            use latent_attention(low_rank_queries = true), indexer;
        }
    }

    fn attend(x) {
        let compressed = compressed_queries(x);
        attend_queries(x, heads(q_b(compressed), n_head), selection = selected(x, compressed))
    }

    fn selected(x, compressed) {
        select_cells(x, compressed, magnitude = magnitude, neox = true)
    }

    test {
        n_embd: 128, n_head: 1, n_layer: 2, n_ff: 192, n_vocab: 128, n_dense: 1, n_ff_exp: 192, kv_rank: 512, q_rank: 512,
        key_length_mla: 192, value_length_mla: 128, n_expert: 2, n_expert_used: 2, n_shared: 1, index_heads: 64, index_dim: 128,
        n_selected: 16, gating_func: 2
    }
}
