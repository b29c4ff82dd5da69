//! A.X K1: DeepSeek V3 with a norm after the experts.

arch_macros::arch! {
    name: "axk1";
    like: "deepseek2";

    hparams {
        gating_func: usize = "expert_gating_func";
        norm_weights: bool = "expert_weights_norm";
        weights_scale: f32 = "expert_weights_scale";
    }

    tensors {
        layer {
            without gate_up_exps;
            if il >= n_dense {
                gate_exps, up_exps: experts "ffn_gate_exps", "ffn_up_exps" [n_embd -> n_ff_exp; n_expert];
                ffn_post_norm: vector "post_ffw_norm" [n_embd];
            }
        }
    }

    fn ffn_or_experts(h) {
        if il < n_dense {
            ffn(h)
        } else {
            rms_norm(routed_by_keys(h, selection_bias = probs_bias) + shared_experts(h), ffn_post_norm)
        }
    }

    test {
        n_embd: 128, n_head: 2, n_layer: 2, n_ff: 192, n_vocab: 128, n_dense: 1, n_ff_exp: 64, kv_rank: 64, q_rank_of_file: 48,
        n_rot: 16, key_length_mla: 48, value_length_mla: 32, n_expert: 8, n_expert_used: 3, n_shared: 1, gating_func: 2,
        norm_weights: true, weights_scale: 2.5, n_group: 4, n_group_used: 2, rms_norm_eps: 1e-6
    }
}
