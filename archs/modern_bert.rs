//! ModernBERT and its embedding models: symmetric sliding windows with their own rotary base, full attention
//! in every third layer, pre-norm blocks, and a fused gate and up projection.

arch_macros::arch! {
    name: "modern-bert";
    rope: neox;
    attention: bidirectional;

    hparams {
        act: string = "hidden_activation" or "gelu";
        check act != "relu", "hidden_activation must be a gated activation";
        n_decision: usize = "decision_block_count" or 0;
        check n_decision == 0, "decision heads are not supported: decision_block_count must be 0";
        let gates_silu = act == "silu" || act == "swish" || act == "swiglu";
        let gates_relu = act == "reglu";
        let approximates_gelu = act == "gelu_pytorch_tanh" || act == "gelu_new" || act == "gelu_fast";
    }

    tensors {
        use sliding_window(length = 0, period = 3, kind = dense_first, base = 10000.0);
        token_embd: embed [n_embd, n_vocab];
        token_embd_norm, output_norm: vector [n_embd];
        cls?: linear [n_embd -> n_embd];
        cls_norm?:   vector "cls.norm"   [n_embd];
        cls_output?: linear "cls.output" [n_embd -> n_labels];

        layer {
            attn_norm?: vector [n_embd]; // the first layer has no such norm
            use self_attention;
            ffn_norm: vector [n_embd];
            // Files store the gate and up projections in one tensor, `ffn_up`.
            use gated_ffn;
        }
    }

    graph {
        let x = layer_norm(token_embd[tokens], token_embd_norm);
        for layer {
            let h = if has(attn_norm) { layer_norm(x, attn_norm) } else { x };
            x += attend(h, base = rope_base, rope_scale = rope_scale, window = symmetric(n_swa, is_swa));
            let h = layer_norm(x, ffn_norm);
            if gates_silu {
                x += ffn(h, act = silu);
            } else if gates_relu {
                x += ffn(h, act = relu);
            } else if approximates_gelu {
                x += ffn(h, act = gelu);
            } else {
                x += ffn(h, act = gelu_erf);
            }
        }
        layer_norm(x, output_norm)
    }

    rank(mean) {
        let h = if has(cls) { gelu_erf(cls(pooled)) } else { pooled };
        if has(cls) && has(cls_norm) {
            h = layer_norm(h, cls_norm);
        }
        cls_output(h)
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_swa: 32 }
}
