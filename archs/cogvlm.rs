//! CogVLM language model: fused query, key, and value projection, rotary positions with base 10000. Text
//! only: the vision experts in each layer are ignored.

arch_macros::arch! {
    name: "cogvlm";
    rope: neox;

    hparams {
        let width = n_head * head_dim;
    }

    tensors {
        use tied_output;
        ignore "rope_freqs", "vis_attn_qkv", "vis_attn_output", "vis_gate", "vis_down", "vis_up";

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            wqkv: linear "attn_qkv"    [n_embd -> 3 * width];
            wo:   linear "attn_output" [width -> n_embd];
            use gated_ffn;
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let qkv = wqkv(rms_norm(x, attn_norm));
            // The rotary positions are unscaled, regardless of the keys in the file.
            let q = rope(heads(qkv[..width], n_head),
                         base = 10000.0, scale = 1.0, dims = head_dim, magnitude = 1.0, yarn = false);
            let k = rope(heads(qkv[width..width + n_head_kv * head_dim], n_head_kv),
                         base = 10000.0, scale = 1.0, dims = head_dim, magnitude = 1.0, yarn = false);
            let v = heads(qkv[2 * width..2 * width + n_head_kv * head_dim], n_head_kv);
            x += wo(attention(q, k, v));
            x += ffn(rms_norm(x, ffn_norm));
        }
        output(rms_norm(x, output_norm))
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
