//! Command A with experts: parallel attention and feed-forward network after one norm, sliding windows with
//! rotary positions in three of four layers. Dense leading layers, then the mean of routed experts and a
//! shared expert.

arch_macros::arch! {
    name: "cohere2moe";
    rope: norm;

    hparams {
        layer_norm_eps: f32 = "attention.layer_norm_epsilon" or 0.0;
        rms_norm_eps: f32 = "attention.layer_norm_rms_epsilon" or 0.0;
        check layer_norm_eps > 0.0 || rms_norm_eps > 0.0,
              "attention.layer_norm_epsilon or attention.layer_norm_rms_epsilon must be greater than 0";
        n_dense: usize = "leading_dense_block_count";
        n_ff_exp: [usize] = "expert_feed_forward_length";
        n_shared: usize = "expert_shared_count" or 0;
        n_ff_shexp: [usize] = "expert_shared_feed_forward_length" or n_ff_exp * n_shared;
        // Full-attention layers have no rotary positions, except for the dense leading layers.
        let rotated = swa_pattern || il < n_dense;
        let has_experts = il >= n_dense;
        let has_shared = has_experts && n_shared > 0;
    }

    tensors {
        use tied_output, logit_scale, sliding_window(period = 4, kind = dense_first);

        layer {
            attn_norm: vector "attn_norm" [n_embd];
            use self_attention;
            if has_experts {
                router: linear "ffn_gate_inp" [n_embd -> n_expert];
                use fused_expert_stacks, expert_routing(default_gating = 2);
            } else {
                use gated_ffn;
            }
            if has_shared {
                use shared_experts(width = n_ff_shexp);
            }
        }
    }

    fn normed(x, weight?) {
        if rms_norm_eps > 0.0 { rms_norm(x, weight) } else { layer_norm(x, weight) }
    }

    fn ffn_or_experts(x) {
        if has_experts {
            let y = routed_by_keys(x, gate_up = gate_up_exps);
            if has_shared {
                y = (y + shared_experts(x)) * 0.5;
            }
            y
        } else {
            ffn(x)
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = normed(x, weight = attn_norm);
            let attn = attend(h, rotated = rotated, base = rope_base, window = sliding(n_swa, is_swa));
            x += ffn_or_experts(h) + attn;
        }
        scale_logits(output(normed(x, weight = output_norm)))
    }

    test {
        n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, n_ff_exp: 384,
        n_swa: 32, n_dense: 0, layer_norm_eps: 1e-5
    }
}
