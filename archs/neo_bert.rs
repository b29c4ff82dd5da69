//! NeoBERT: RMS norms before each block, rotary positions, SwiGLU with gates and values in one matrix.

arch_macros::arch! {
    name: "neo-bert";
    rope: norm;
    attention: bidirectional;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
    }

    tensors {
        token_embd:  embed  "token_embd"      [n_embd, n_vocab];
        output_norm: vector "enc.output_norm" [n_embd];
        cls?:        linear "cls"             [n_embd -> n_embd];
        cls_output?: linear "cls.output"      [n_embd -> n_labels];

        layer {
            attn_norm: vector "attn_norm"   [n_embd];
            wq:        linear "attn_q"      [n_embd -> n_head * head_dim];
            wk:        linear "attn_k"      [n_embd -> n_head_kv * head_dim];
            wv:        linear "attn_v"      [n_embd -> n_head_kv * head_dim_v];
            wo:        linear "attn_output" [n_head * head_dim_v -> n_embd];
            ffn_norm:  vector "ffn_norm"    [n_embd];
            up:        linear "ffn_up"      [n_embd -> 2 * n_ff]; // the gate's rows, then the values'
            down:      linear "ffn_down"    [n_ff -> n_embd];
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm, eps);
            let q = rope(heads(wq(h), n_head));
            let k = rope(heads(wk(h), n_head_kv));
            let v = heads(wv(h), n_head_kv);
            x += wo(attention(q, k, v));
            let h = up(rms_norm(x, ffn_norm, eps));
            x += down(silu(h[..n_ff]) * h[n_ff..]);
        }
        rms_norm(x, output_norm, eps)
    }

    rank {
        let h = if has(cls) { tanh(cls(pooled)) } else { pooled };
        cls_output(h)
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
