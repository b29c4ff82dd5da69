//! MiniMax-01: lightning attention with a fixed decay per head and layer, and softmax attention in every
//! eighth layer. Scaled residual branches that start at the norms.

arch_macros::arch! {
    name: "minimax-01";
    rope: neox;

    hparams {
        residual: f32 = "residual_scale";
        interval: usize = "full_attention_interval" or 8;
        is_recurrent: [bool] = "attention.recurrent_layers" or (il + 1) % interval != 0;
        let slope = 1.0 - 1.0 * il / max(n_layer - 1, 1) + 0.00001;
    }

    tensors {
        use tied_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            if is_recurrent {
                wqkv:      linear "attn_qkv"    [n_embd -> n_head * (3 * head_dim)];
                attn_gate: linear "attn_gate"   [n_embd -> n_head * head_dim];
                y_norm:    vector "attn_norm_2" [n_head * head_dim];
                wy:        linear "attn_output" [n_head * head_dim -> n_embd];
            } else {
                use self_attention;
            }
            use experts;
            override gate_exps?: experts "ffn_gate_exps" [n_embd -> n_ff; n_expert];
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm);
            x = h * residual;
            if is_recurrent {
                let qkv = heads(silu(wqkv(h)), n_head);
                let y = linear_attention(qkv[..head_dim], qkv[head_dim..2 * head_dim], qkv[2 * head_dim..],
                                         slope = slope, scale = 1.0);
                x += wy(sigmoid(attn_gate(h)) * rms_norm(merge(y), y_norm));
            } else {
                x += attend(h);
            }
            let h = rms_norm(x, ffn_norm);
            x = h * residual + routed(h);
        }
        output(rms_norm(x, output_norm))
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, interval: 2 }
}
