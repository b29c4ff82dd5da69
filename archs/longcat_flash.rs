//! LongCat Flash: multi-head latent attention, and experts in a shortcut around every second block. Some
//! experts return their input. A published layer with two blocks is two layers here.

arch_macros::arch! {
    name: "longcat-flash";
    rope: norm;

    hparams {
        check n_layer % 2 == 0, "block_count must be even";
        n_ff_exp: usize = "expert_feed_forward_length";
        n_identity: usize = "expert_identity_count";
        weights_scale: f32 = "expert_weights_scale";
        let q_gain = sqrt(1.0 * n_embd / q_rank);
        let kv_gain = sqrt(1.0 * n_embd / kv_rank);
        let has_experts = il % 2 == 0;
    }

    tensors {
        use untied_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use latent_attention(low_rank_queries = true), gated_ffn;
            if has_experts {
                router:     linear "ffn_gate_inp"     [n_embd -> n_expert + n_identity];
                probs_bias: raw    "exp_probs_b.bias" [n_expert + n_identity];
                use expert_stacks(width = n_ff_exp);
            }
        }
    }

    // Published models use this epsilon for the compressed vectors only.
    fn compressed_queries(x: [n_embd, T]) { rms_norm(q_a(x), q_a_norm, 1e-6) * q_gain }

    fn compressed_keys(c: [kv_rank, T]) { rms_norm(c, kv_a_norm, 1e-6) * kv_gain }

    fn experts(x: [n_embd, T]) {
        let probs = softmax(router(x));
        let weights = probs * top_mask(probs + probs_bias, n_expert_used) * weights_scale;
        let y = routed(x, scores = weights[..n_expert], gating = none, norm_weights = false);
        y + x * sum_rows(weights[n_expert..])
    }

    graph {
        let x = token_embd[tokens];
        let shortcut = x;
        for layer {
            x += attend_latent(rms_norm(x, attn_norm));
            let h = rms_norm(x, ffn_norm);
            if has_experts {
                shortcut = experts(h);
            }
            x += ffn(h);
            if !has_experts {
                x += shortcut;
            }
        }
        output(rms_norm(x, output_norm))
    }

    test {
        n_embd: 128, n_head: 2, n_layer: 4, n_ff: 192, n_vocab: 128, n_ff_exp: 64, kv_rank: 64, q_rank: 48, n_rot: 16,
        key_length_mla: 48, value_length_mla: 32, n_expert: 6, n_identity: 3, n_expert_used: 3, weights_scale: 6.0
    }
}
