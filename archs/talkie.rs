//! Talkie: RMS norms without weights, a gain per query head, and a scaled copy of the normalized embedding
//! added in every layer.

arch_macros::arch! {
    name: "talkie";
    rope: neox;

    tensors {
        token_embd: embed  "token_embd" [n_embd, n_vocab];
        output:     linear "output"     [n_embd -> n_vocab];
        use logit_scale;

        layer {
            use self_attention;
            q_gain: vector "attn_q_norm" [1, n_head];
            use gated_ffn;
            skip_scale: vector "layer_output_scale" [1];
        }
    }

    graph {
        let first = rms_norm(token_embd[tokens]);
        let x = first;
        for layer {
            let h = rms_norm(x);
            let q = rms_norm(rope(heads(wq(h), n_head))) * q_gain;
            let k = rms_norm(rope(heads(wk(h), n_head_kv)));
            x += wo(attention(q, k, heads(wv(h), n_head_kv)));
            x += ffn(rms_norm(x)) + first * skip_scale;
        }
        scale_logits(output(rms_norm(x)))
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
