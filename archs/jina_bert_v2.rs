//! Jina Embeddings 2: BERT with ALiBi instead of learned positions and a feed-forward network that is gated
//! (GEGLU) in most files. The code models add norms for queries and keys and a second norm after attention.

arch_macros::arch! {
    name: "jina-bert-v2";
    like: "bert";

    tensors {
        without position_embd, cls_output;
        cls?:        linear "cls"         [n_embd -> n_labels];
        token_types: vector "token_types" [n_embd, n_token_types];

        layer {
            q_norm?:      norm "attn_q_norm" [n_head * head_dim];
            k_norm?:      norm "attn_k_norm" [n_head_kv * head_dim];
            attn_norm_2?: norm "attn_norm_2" [n_embd];
            // Some files store the gate and up projections in one tensor, `ffn_up`.
            gate?: linear "ffn_gate" [n_embd -> n_ff];
        }
    }

    fn ffn(x) { down(if has(gate) { gelu_erf(gate(x)) * up(x) } else { gelu_erf(up(x)) }) }

    fn queries(x) {
        heads(if has(q_norm) { layer_norm(wq(x), q_norm) } else { wq(x) }, n_head)
    }

    fn keys(x) {
        heads(if has(k_norm) { layer_norm(wk(x), k_norm) } else { wk(x) }, n_head_kv)
    }

    graph {
        let x = layer_norm(token_embd[tokens] + row(token_types, 0), token_embd_norm);
        for layer {
            let h = x + attend(x, rotated = false, alibi = 8.0);
            let h = layer_norm(h, attn_output_norm);
            if has(attn_norm_2) {
                h = layer_norm(h + x, attn_norm_2);
            }
            x = layer_norm(h + ffn(h), layer_output_norm);
        }
        x
    }

    rank { tanh(cls(pooled)) }
}
