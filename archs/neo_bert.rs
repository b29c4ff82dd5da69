//! NeoBERT: a pre-norm encoder with RMS norms, rotary positions, and SwiGLU with a fused gate and up
//! projection.

arch_macros::arch! {
    name: "neo-bert";
    rope: norm;
    attention: bidirectional;

    tensors {
        token_embd: embed [n_embd, n_vocab];
        output_norm: vector "enc.output_norm" [n_embd];
        cls?: linear [n_embd -> n_embd];
        cls_output?: linear "cls.output" [n_embd -> n_labels];

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            // Files store the gate and up projections in one tensor, `ffn_up`.
            use self_attention, gated_ffn;
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(rms_norm(x, attn_norm));
            x += ffn(rms_norm(x, ffn_norm));
        }
        rms_norm(x, output_norm)
    }

    rank {
        let h = if has(cls) { tanh(cls(pooled)) } else { pooled };
        cls_output(h)
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
