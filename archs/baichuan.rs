//! Baichuan 1 and 2: the 7B model rotates queries and keys, the 13B model has ALiBi instead. The number of layers
//! tells them apart.

arch_macros::arch! {
    name: "baichuan";
    rope: norm;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        // 32 layers are the 7B model, 40 the 13B; files of another size have neither rotation nor bias.
        let use_rope = n_layer == 32;
        // The slopes of ALiBi start below 2^-(8 / n_head).
        let max_bias = if n_layer == 40 { 8.0 } else { 0.0 };
    }

    tensors {
        token_embd:  embed  "token_embd"  [n_embd, n_vocab];
        output_norm: vector "output_norm" [n_embd];
        output:      linear "output"      [n_embd -> n_vocab];

        layer {
            attn_norm: vector "attn_norm"   [n_embd];
            wq:        linear "attn_q"      [n_embd -> n_head * head_dim];
            wk:        linear "attn_k"      [n_embd -> n_head_kv * head_dim];
            wv:        linear "attn_v"      [n_embd -> n_head_kv * head_dim_v];
            wo:        linear "attn_output" [n_head * head_dim_v -> n_embd];
            ffn_norm:  vector "ffn_norm"    [n_embd];
            gate:      linear "ffn_gate"    [n_embd -> n_ff];
            up:        linear "ffn_up"      [n_embd -> n_ff];
            down:      linear "ffn_down"    [n_ff -> n_embd];
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm, eps);
            let q = heads(wq(h), n_head);
            let k = heads(wk(h), n_head_kv);
            let v = heads(wv(h), n_head_kv);
            if use_rope {
                q = rope(q);
                k = rope(k);
            }
            x += wo(attention(q, k, v, alibi = max_bias));
            let h = rms_norm(x, ffn_norm, eps);
            x += down(silu(gate(h)) * up(h));
        }
        output(rms_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 4, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
