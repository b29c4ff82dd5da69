//! ERNIE 4.5 with experts: dense leading layers, then experts in every n-th layer. Softmax routing with an
//! optional selection bias, and an optional shared expert.

arch_macros::arch! {
    name: "ernie4_5-moe";
    rope: norm;

    hparams {
        n_dense: usize = "leading_dense_block_count" or 0;
        moe_step: usize = "interleave_moe_layer_step";
        check moe_step > 0, "interleave_moe_layer_step must not be 0";
        n_ff_exp: [usize] = "expert_feed_forward_length";
        n_ff_shexp: usize = "expert_shared_feed_forward_length" or 0;
        let has_experts = il >= n_dense && (il + 1) % moe_step == 0;
        let has_shared = has_experts && n_ff_shexp > 0;
    }

    tensors {
        use tied_output;
        ignore "attn_output.bias"; // optional in files; not used by the published model

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention;
            if has_experts {
                use experts(width = n_ff_exp);
                override gate_exps?: experts "ffn_gate_exps" [n_embd -> n_ff_exp; n_expert];
                probs_bias?: raw "exp_probs_b.bias" [n_expert];
            } else {
                use gated_ffn;
            }
            if has_shared {
                use shared_experts(width = n_ff_shexp);
            }
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(rms_norm(x, attn_norm));
            let h = rms_norm(x, ffn_norm);
            if has_experts {
                x += routed(h, selection_bias = probs_bias);
                if has_shared {
                    x += shared_experts(h);
                }
            } else {
                x += ffn(h);
            }
        }
        output(rms_norm(x, output_norm))
    }

    test {
        n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, n_ff_exp: 384,
        moe_step: 1
    }
}
