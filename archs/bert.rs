//! BERT and its sentence encoders (MiniLM, BGE, E5, GTE): learned positions, norms behind each block, GELU; every token sees
//! all of its sequence.

arch_macros::arch! {
    name: "bert";
    rope: none;
    attention: bidirectional;

    hparams {
        eps: f32 = "attention.layer_norm_epsilon";
        n_token_types: usize = "/tokenizer.ggml.token_type_count";
        check n_token_types > 0, "tokenizer.ggml.token_type_count is 0";
    }

    tensors {
        token_embd:      embed "token_embd"      [n_embd, n_vocab];
        token_types?:    vector "token_types"     [n_embd, n_token_types];
        position_embd:   embed "position_embd"   [n_embd, n_ctx_train];
        token_embd_norm: norm  "token_embd_norm" [n_embd];
        cls?:            linear "cls"             [n_embd -> n_embd];
        cls_output?:     linear "cls.output"      [n_embd -> n_labels];

        layer {
            wq:                linear "attn_q"            [n_embd -> n_head * head_dim];
            wk:                linear "attn_k"            [n_embd -> n_head_kv * head_dim];
            wv:                linear "attn_v"            [n_embd -> n_head_kv * head_dim_v];
            wo:                linear "attn_output"       [n_head * head_dim_v -> n_embd];
            attn_output_norm:  norm   "attn_output_norm"  [n_embd];
            up:                linear "ffn_up"            [n_embd -> n_ff];
            down:              linear "ffn_down"          [n_ff -> n_embd];
            layer_output_norm: norm   "layer_output_norm" [n_embd];
        }
    }

    graph {
        let x = token_embd[tokens] + position_embd[positions];
        if has(token_types) { x += row(token_types, 0); }
        let x = layer_norm(x, token_embd_norm, eps);
        for layer {
            let q = heads(wq(x), n_head);
            let k = heads(wk(x), n_head_kv);
            let v = heads(wv(x), n_head_kv);
            x = layer_norm(x + wo(attention(q, k, v)), attn_output_norm, eps);
            x = layer_norm(x + down(gelu(up(x))), layer_output_norm, eps);
        }
        x
    }

    rank {
        let h = if has(cls) { tanh(cls(pooled)) } else { pooled };
        cls_output(h)
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_token_types: 2 }
}
