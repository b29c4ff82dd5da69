//! MiniMax M2: RMS norms over all query heads and over all key heads, partial rotary positions, and experts
//! selected with a bias.

arch_macros::arch! {
    name: "minimax-m2";
    like: "olmoe";

    hparams {
        gating_func: usize = "expert_gating_func";
        check gating_func > 0 && gating_func <= 4, "expert_gating_func must be 1 to 4";
    }

    tensors {
        layer {
            probs_bias: raw "exp_probs_b.bias" [n_expert];
        }
    }

    fn ffn(h) {
        routed(h, gating = gating_func, selection_bias = probs_bias)
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, gating_func: 2 }
}
