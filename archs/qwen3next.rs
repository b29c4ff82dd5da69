//! Qwen3-Next: most layers are Gated DeltaNets with a short convolution; every fourth layer has gated
//! attention. Routed experts, plus a shared expert with a gate.

arch_macros::arch! {
    name: "qwen3next";
    rope: neox;

    hparams {
        interval: usize = "full_attention_interval" or 4;
        recurrent_layers: [bool] = "attention.recurrent_layers" or (il + 1) % interval != 0;
        let is_recurrent = recurrent_layers && !is_mtp;
        n_ff_exp: [usize] = "expert_feed_forward_length" or n_ff / n_expert_used;
        n_ff_shexp: [usize] = "expert_shared_feed_forward_length" or n_ff;
    }

    tensors {
        use tied_output;

        layer {
            attn_norm, ffn_norm: vector "attn_norm", "post_attention_norm" [n_embd];
            if is_recurrent {
                use gated_delta_net;
            } else {
                use gated_attention;
            }
            if n_expert > 0 {
                router: linear "ffn_gate_inp" [n_embd -> n_expert];
                use fused_expert_stacks, gated_shared_expert;
            } else {
                use gated_ffn;
            }
            use mtp_layer;
        }
    }

    fn experts(h) {
        routed(h, gate_up = gate_up_exps) + gated_shared_expert(h)
    }

    fn embeddings() { token_embd[tokens] }

    graph {
        let x = embeddings();
        for layer {
            let h = rms_norm(x, attn_norm);
            x += if is_recurrent { delta_net(h) } else { attend(h) };
            let h = rms_norm(x, ffn_norm);
            x += if n_expert > 0 { experts(h) } else { ffn(h) };
        }
        output(rms_norm(x, output_norm))
    }

    mtp {
        mtp_logits(layer(mtp_input()))
    }

    checkpoint "Qwen3NextForCausalLM" {
        interval = "full_attention_interval" or 4;
        recurrent_layers = "layer_types" == text("linear_attention");
        n_ff_exp = "moe_intermediate_size";
        n_ff_shexp = "shared_expert_intermediate_size";
        n_rot = int(head_dim * first("rope_parameters.partial_rotary_factor", "partial_rotary_factor", 0.25));
        check first("norm_topk_prob", true) == true, "norm_topk_prob must be true for this architecture";
        check first("decoder_sparse_step", 1) == 1, "decoder_sparse_step must be 1: all layers have experts";
        output_norm <- "model.norm" plus 1;
        layer {
            attn_norm <- ".input_layernorm" plus 1;
            ffn_norm <- ".post_attention_layernorm" plus 1;
            router <- ".mlp.gate";
        }
        mtp "mtp.layers.{}" {
            eh_proj <- "mtp.fc";
            enorm <- "mtp.pre_fc_norm_embedding" plus 1;
            hnorm <- "mtp.pre_fc_norm_hidden" plus 1;
            mtp_embd <- "mtp.embed_tokens";
            mtp_norm <- "mtp.norm" plus 1;
            without mtp_output "all layers have one output matrix";
        }
    }

    test {
        n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, interval: 2, d_conv: 4,
        d_inner: 256, d_state: 128, n_value: 2, n_key: 2
    }
}
