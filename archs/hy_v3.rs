//! Hunyuan 3: RMS norms per query and key head; dense leading layers, then experts selected with a bias, plus
//! a shared expert. The tensors present in a file determine which layers are dense.

arch_macros::arch! {
    name: "hy_v3";
    rope: neox;

    hparams {
        n_ff_exp: [usize] = "expert_feed_forward_length";
        n_ff_shexp: [usize] = "expert_shared_feed_forward_length" or n_ff_exp;
    }

    tensors {
        use tied_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use qk_norm_attention;
            router?: linear "ffn_gate_inp" [n_embd -> n_expert];
            if has(router) {
                use fused_expert_stacks, expert_routing(default_gating = 2);
                probs_bias?: raw "exp_probs_b" [n_expert];
                use shared_experts(width = n_ff_shexp);
                ignore "ffn_gate", "ffn_up", "ffn_down";
            } else {
                use gated_ffn;
            }
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(rms_norm(x, attn_norm));
            let h = rms_norm(x, ffn_norm);
            if has(router) {
                x += routed_by_keys(h, selection_bias = probs_bias, gate_up = gate_up_exps) + shared_experts(h);
            } else {
                x += ffn(h);
            }
        }
        output(rms_norm(x, output_norm))
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, n_ff_exp: 384 }
}
