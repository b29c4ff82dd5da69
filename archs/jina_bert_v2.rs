//! Jina Embeddings 2: BERT with ALiBi instead of positions, a feed-forward that most files gate (GEGLU), and, in the models for
//! code, norms of queries and keys and a second norm behind attention.

arch_macros::arch! {
    name: "jina-bert-v2";
    like: "bert";

    tensors {
        without position_embd, cls_output;
        cls?: linear "cls" [n_embd -> n_labels];
        token_types: vector "token_types" [n_embd, n_token_types];

        layer {
            q_norm?:      norm   "attn_q_norm" [n_head * head_dim];
            k_norm?:      norm   "attn_k_norm" [n_head_kv * head_dim];
            attn_norm_2?: norm   "attn_norm_2" [n_embd];
            // Files may hold gates and ups in one tensor, `ffn_up`.
            gate?:        linear "ffn_gate"    [n_embd -> n_ff];
        }
    }

    fn ffn(x) { down(if has(gate) { gelu(gate(x)) * up(x) } else { gelu(up(x)) }) }

    graph {
        let x = layer_norm(token_embd[tokens] + row(token_types, 0), token_embd_norm, eps);
        for layer {
            let q = wq(x);
            let k = wk(x);
            if has(q_norm) { q = layer_norm(q, q_norm, eps); }
            if has(k_norm) { k = layer_norm(k, k_norm, eps); }
            let v = heads(wv(x), n_head_kv);
            let h = x + wo(attention(heads(q, n_head), heads(k, n_head_kv), v, alibi = 8.0));
            let h = layer_norm(h, attn_output_norm, eps);
            if has(attn_norm_2) { h = layer_norm(h + x, attn_norm_2, eps); }
            x = layer_norm(h + ffn(h), layer_output_norm, eps);
        }
        x
    }

    rank { tanh(cls(pooled)) }
}
