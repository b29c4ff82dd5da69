//! Nomic Embed: BERT with rotary positions instead of learned ones and a gated feed-forward (SwiGLU).

arch_macros::arch! {
    name: "nomic-bert";
    like: "bert";
    rope: neox;

    tensors {
        without position_embd;
        ignore "ffn_up.bias", "ffn_down.bias"; // may be in a file; the model does not add them

        layer {
            gate: linear "ffn_gate" [n_embd -> n_ff];
        }
    }

    graph {
        let x = token_embd[tokens];
        if has(token_types) { x += row(token_types, 0); }
        let x = layer_norm(x, token_embd_norm, eps);
        for layer {
            let q = rope(heads(wq(x), n_head));
            let k = rope(heads(wk(x), n_head_kv));
            let v = heads(wv(x), n_head_kv);
            x = layer_norm(x + wo(attention(q, k, v)), attn_output_norm, eps);
            x = layer_norm(x + down(silu(gate(x)) * up(x)), layer_output_norm, eps);
        }
        x
    }
}
