//! GLM 5: DeepSeek V3.2 with adjacent-pair rotary positions in the indexer. In later models, only some layers
//! have an indexer; the other layers reuse the cells of the preceding indexer.

arch_macros::arch! {
    name: "glm-dsa";
    like: "deepseek32";

    models {
        "GLM 5.2": n_ctx_train >= 1048576;
    }

    hparams {
        without log_mul;
        gating_func: usize = "expert_gating_func" or 0;
        // Files without this key use sigmoid gating.
        let gating = if gating_func > 0 { gating_func } else { 2 };
        let magnitude = attn_factor;
        let mscale = magnitude * sharper;
        // GLM 5.2 has indexers in its first two layers and then in every fourth.
        indexes: [bool] = "attention.indexer.types" or !model_is("GLM 5.2") || il < 2 || il % 4 == 2;
        check il > 0 || indexes, "attention.indexer.types must start with a layer that has an indexer";
    }

    tensors {
        ignore "indexer.attn_q_b", "indexer.attn_k", "indexer.k_norm", "indexer.proj";

        layer {
            if indexes {
                use indexer;
            }
        }
    }

    fn selected(x, compressed) {
        if indexes { select_cells(x, compressed, magnitude = magnitude) } else { shared_selection(n_selected) }
    }
}
