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

    checkpoint "MiniMaxM2ForCausalLM" {
        gating_func = 2;
        n_rot = "rotary_dim";
        rope_freq_base = "rope_parameters.rope_theta" or "rope_theta" or 5000000.0;
        attn_norm <- ".input_layernorm";
        ffn_norm <- ".post_attention_layernorm";
        router <- ".block_sparse_moe.gate" or ".mlp.gate";
        probs_bias <- ".block_sparse_moe.e_score_correction_bias" or ".mlp.e_score_correction_bias" or ".mlp.gate.e_score_correction_bias";
        gate_exps <- stack ".block_sparse_moe.experts.{}.w1" or ".mlp.experts.gate_up_proj" split 0 / 2;
        up_exps <- stack ".block_sparse_moe.experts.{}.w3" or ".mlp.experts.gate_up_proj" split 1 / 2;
        down_exps <- stack ".block_sparse_moe.experts.{}.w2" or ".mlp.experts.down_proj";
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, gating_func: 2 }
}
