//! Hunyuan A13B: softmax routing and a shared expert in every layer. RMS norms per query and key head follow
//! the rotation.

arch_macros::arch! {
    name: "hunyuan-moe";
    like: "hunyuan-dense";

    hparams {
        without alpha, stretch;
        let rope_base = rope_freq_base;
        n_ff_shexp: [usize] = "expert_shared_feed_forward_length" or n_ff;
    }

    tensors {
        layer {
            without gate, up, down;
            use experts, shared_experts(width = n_ff_shexp);
        }
    }

    fn ffn(h) {
        routed(h) + shared_experts(h)
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2 }
}
