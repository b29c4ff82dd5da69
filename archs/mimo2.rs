//! MiMo-V2-Flash: sliding-window layers with their own rotary base and attention sinks, and values narrower
//! than keys. The tensors present in a file determine which layers are dense.

arch_macros::arch! {
    name: "mimo2";
    rope: neox;

    hparams {
        n_ff_exp: [usize] = "expert_feed_forward_length";
        n_group: usize = "expert_group_count" or 1;
        n_group_used: usize = "expert_group_used_count" or 1;
        value_factor: f32 = "attention.value_scale" or 1.0;
        // A factor of 0 disables the scaling.
        let value_scale = if value_factor == 0.0 { 1.0 } else { value_factor };
    }

    tensors {
        use untied_output, sliding_window(kind = [bool], base = 10000.0);
        // The recorded reference results exclude these biases.
        ignore "attn_q.bias", "attn_k.bias", "attn_v.bias", "attn_qkv.bias";

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention;
            sinks?:  vector "attn_sinks"   [n_head];
            router?: linear "ffn_gate_inp" [n_embd -> n_expert];
            if has(router) {
                use expert_stacks(width = n_ff_exp);
                probs_bias?: raw "exp_probs_b.bias" [n_expert];
                ignore "ffn_gate", "ffn_up", "ffn_down";
            } else {
                use gated_ffn;
            }
        }
    }

    graph {
        let x = with_media(token_embd[tokens]);
        for layer {
            x += value_scale * attend(rms_norm(x, attn_norm), base = rope_base, rope_scale = rope_scale,
                                      sinks = sinks, window = sliding(n_swa, is_swa));
            let h = rms_norm(x, ffn_norm);
            if has(router) {
                x += routed(h, gating = sigmoid, selection_bias = probs_bias, n_groups = n_group,
                            n_groups_used = n_group_used);
            } else {
                x += ffn(h);
            }
        }
        output(rms_norm(x, output_norm))
    }

    test {
        n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, n_ff_exp: 384,
        n_swa: 32
    }
}
