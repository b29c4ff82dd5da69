//! Falcon: parallel attention and feed-forward network, LayerNorm, GELU.

name: "falcon";
rope: neox;

hparams {
    eps: f32 = "attention.layer_norm_epsilon";
}

tensors {
    token_embd:  embed  "token_embd"  [n_embd, n_vocab];
    output_norm: norm   "output_norm" [n_embd];
    output:      linear "output"      [n_embd -> n_vocab] or token_embd;

    layer {
        attn_norm:    norm   "attn_norm"   [n_embd];
        attn_norm_2?: norm   "attn_norm_2" [n_embd]; // only in the 40B model
        wq:           linear "attn_q"      [n_embd -> n_head * head_dim];
        wk:           linear "attn_k"      [n_embd -> n_head_kv * head_dim];
        wv:           linear "attn_v"      [n_embd -> n_head_kv * head_dim_v];
        wo:           linear "attn_output" [n_head * head_dim_v -> n_embd];
        up:           linear "ffn_up"      [n_embd -> n_ff];
        down:         linear "ffn_down"    [n_ff -> n_embd];
    }
}

graph {
    let x = token_embd[tokens];
    for layer {
        let ffn_in = layer_norm(x, attn_norm, eps);
        let h = if has(attn_norm_2) { layer_norm(x, attn_norm_2, eps) } else { ffn_in };
        let q = rope(heads(wq(h), n_head));
        let k = rope(heads(wk(h), n_head_kv));
        let v = heads(wv(h), n_head_kv);
        x += wo(attention(q, k, v)) + down(gelu(up(ffn_in)));
    }
    output(layer_norm(x, output_norm, eps))
}

test { n_embd: 256, n_head: 2, n_head_kv: 1, n_layer: 2, n_ff: 384, n_vocab: 128 }
