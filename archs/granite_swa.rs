//! Granite with sliding windows: attention sinks in every head, and layers without rotary positions as listed in the
//! file. Multipliers scale embeddings, residual branches, and logits.

arch_macros::arch! {
    name: "granite_swa";
    like: "granite";

    hparams {
        without deep, n_deep;
        without check "deepstack_mapping must contain -1 or the number of features";
        use_rope: [bool] = "attention.rope_pattern" or true;
    }

    tensors {
        use sliding_window(kind = [bool]);
        layer {
            sinks: vector "attn_sinks" [n_head];
            if n_expert > 0 {
                gate_exps?, up_exps?: experts "ffn_gate_exps", "ffn_up_exps" [n_embd -> n_ff; n_expert];
                gate_up_exps?: experts "ffn_gate_up_exps" [n_embd -> 2 * n_ff; n_expert];
            }
            if has_shared {
                up_shexp: linear "ffn_up_shexp" [n_embd -> 2 * n_ff_shexp]; // rows of the gate, then of the up projection
            }
            without gate_shexp;
        }
    }

    graph {
        let x = token_embd[tokens] * embedding_scale;
        for layer {
            let h = rms_norm(x, attn_norm);
            x += attend(h, rotated = use_rope, factors = rope_freqs, short = rope_short, long = rope_long, scale = kq_scale,
                        sinks = sinks, window = sliding(n_swa, is_swa)) * residual_scale;
            x += ffn_and_shared(rms_norm(x, ffn_norm)) * residual_scale;
        }
        output(rms_norm(x, output_norm)) / logit_scale
    }

    fn ffn_or_experts(h) {
        if n_expert == 0 { ffn(h) } else { routed(h, gate_up = gate_up_exps) }
    }

    fn shared_experts(h) {
        let s = up_shexp(h);
        down_shexp(silu(s[..n_ff_shexp]) * s[n_ff_shexp..])
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_swa: 32 }
}
