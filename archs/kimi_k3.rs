//! Kimi K3: gated layers of delta attention and latent attention, experts in a latent space, and soft-capped
//! activations. With attention residuals, each block of layers starts a new residual stream, and every layer
//! reads a weighted combination of the blocks' inputs.

arch_macros::arch! {
    name: "kimi-k3";
    rope: none;

    hparams {
        let is_recurrent = n_head_kv == 0;
        min_decay: f32 = "kda.gate_lower_bound" or 0.0;
        n_dense: usize = "leading_dense_block_count" or 0;
        block: usize = "attn_res.block_size";
        squash: f32 = "activation.situ_beta";
        up_squash: f32 = "activation.situ_linear_beta";
        check squash > 0.0, "activation.situ_beta must be greater than 0";
    }

    tensors {
        use untied_output;
        if block > 0 {
            output_score: vector "output_res_score" [n_embd];
        }

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            if block > 0 {
                attn_score: vector "attn_res_score" [n_embd];
                ffn_score:  vector "ffn_res_score"  [n_embd];
            }
            if is_recurrent {
                use kimi_delta_attention, low_rank_kda_decay;
                y_gate: linear "ssm_g" [n_embd -> n_head_max * d_kda];
            } else {
                use latent_attention;
                attn_gate?: linear "attn_gate" [n_embd -> n_head * mla_head_dim_v];
            }
            if il < n_dense {
                use gated_ffn;
            } else {
                use latent_space_experts;
            }
        }
    }

    fn limited_glu(gate, up) {
        sigmoid(gate) * (softcap(gate, squash) * if up_squash > 0.0 { softcap(up, up_squash) } else { up })
    }

    fn attended(h) {
        let y = merge(attend_latent_heads(h, latent_queries(h), rotated = false));
        if has(attn_gate) {
            y *= sigmoid(attn_gate(h));
        }
        wo(y)
    }

    graph {
        let x = token_embd[tokens];
        // Inputs of the blocks up to the current one.
        let inputs = if block > 0 { bank(x) };
        for layer {
            let h = rms_norm(if block > 0 && il > 0 { recall(x, inputs, attn_score) } else { x }, attn_norm);
            let y = if is_recurrent {
                wy(sigmoid(y_gate(h)) * kda(h, kda_decay(h, heads(a, n_head_max), bound = min_decay)))
            } else {
                attended(h)
            };
            if block > 0 && il % block == 0 {
                if il > 0 {
                    inputs = bank(x, inputs);
                }
                x = y;
            } else {
                x += y;
            }
            let h = rms_norm(if block > 0 { recall(x, inputs, ffn_score) } else { x }, ffn_norm);
            x += if il < n_dense { down(limited_glu(gate(h), up(h))) } else { latent_experts(h) };
        }
        if block > 0 {
            x = recall(x, inputs, output_score);
        }
        output(rms_norm(x, output_norm))
    }

    test {
        n_embd: 128, n_head: 1, n_layer: 2, n_ff: 192, n_vocab: 128, n_expert: 2, n_expert_used: 2, key_length_mla: 192,
        value_length_mla: 128, kv_rank: 512, d_conv: 4, d_kda: 128, n_ff_exp: 192, n_shared: 1, block: 1
    }
}
