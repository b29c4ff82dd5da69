//! BitNet b1.58: ternary weights, with an RMS norm before the output projections of attention and the
//! feed-forward network.

arch_macros::arch! {
    name: "bitnet";
    like: "decoder";
    rope: neox;

    tensors {
        layer {
            attn_sub_norm: vector [n_head * head_dim_v];
            ffn_sub_norm: vector [n_ff];
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm);
            x += wo(rms_norm(attend_heads(h), attn_sub_norm));
            let h = rms_norm(x, ffn_norm);
            x += down(rms_norm(silu(gate(h)) * up(h), ffn_sub_norm));
        }
        output(rms_norm(x, output_norm))
    }
}
