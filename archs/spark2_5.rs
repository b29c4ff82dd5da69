//! Spark 2.5: sliding-window and full layers as listed in the file, with different numbers of rotated dimensions.
//! Attention heads have a sigmoid gate, and feed-forward networks exact GELU gates.

arch_macros::arch! {
    name: "spark2_5";
    rope: neox;

    hparams {
        n_rot_swa: usize = "rope.dimension_count_swa" or n_rot;
        check n_rot_swa % 2 == 0 && n_rot_swa <= head_dim, "rope.dimension_count_swa must be even and at most attention.key_length";
    }

    tensors {
        use tied_output, sliding_window(kind = [bool]);

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention;
            head_gate: linear "attn_gate" [n_embd -> n_head];
            use gated_ffn;
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm);
            let attn = attend_heads(h, base = rope_base, dims = if is_swa { n_rot_swa }, window = sliding(n_swa, is_swa));
            x += wo(merge(heads(attn, n_head) * heads(sigmoid(head_gate(h)), n_head)));
            x += ffn(rms_norm(x, ffn_norm), act = gelu_erf);
        }
        output(rms_norm(x, output_norm))
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_swa: 32 }
}
