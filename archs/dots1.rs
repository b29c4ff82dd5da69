//! dots.llm1: dense leading layers, then experts selected with a bias, plus shared experts. RMS norms per
//! query and key head.

arch_macros::arch! {
    name: "dots1";
    like: "bailingmoe2";

    hparams {
        let n_ff_shexp = n_ff_exp;
        gating_func: usize = "expert_gating_func" or 1;
    }

    test {
        n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, n_ff_exp: 384,
        n_shared: 1
    }
}
