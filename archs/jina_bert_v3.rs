//! Jina Embeddings 3 (XLM-RoBERTa): the graph of BERT with rotary positions instead of learned ones.

arch_macros::arch! {
    name: "jina-bert-v3";
    like: "bert";
    rope: neox;

    tensors {
        without position_embd;
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
            x = layer_norm(x + down(gelu(up(x))), layer_output_norm, eps);
        }
        x
    }
}
