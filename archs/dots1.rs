//! dots.llm1: dense leading layers, then experts selected with a bias, plus shared experts. RMS norms per
//! query and key head.

arch_macros::arch! {
    name: "dots1";
    like: "bailingmoe2";

    // Like its parent's, the gating function has no default: published models use sigmoid.
    hparams {
        let n_ff_shexp = n_ff_exp;
    }

    checkpoint "Dots1ForCausalLM" {
        n_dense = "first_k_dense_replace" or 0;
        n_ff_exp = "moe_intermediate_size";
        n_shared = "n_shared_experts";
        gating_func = 2;
        norm_weights = "norm_topk_prob" or false;
        weights_scale = "routed_scaling_factor" or 1.0;
        n_group = "n_group" or 1;
        n_group_used = "topk_group" or 1;
    }

    test {
        n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, n_ff_exp: 384,
        n_shared: 1, gating_func: 2
    }
}
