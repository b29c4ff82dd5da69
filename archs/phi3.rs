//! Phi-3 and Phi-4: gate and values of the feed-forward in one matrix, rotary frequencies divided by factors for short or long
//! contexts.

arch_macros::arch! {
    name: "phi3";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
    }

    tensors {
        token_embd:  embed  "token_embd"  [n_embd, n_vocab];
        output_norm: vector "output_norm" [n_embd];
        output:      linear "output"      [n_embd -> n_vocab] or token_embd;
        rope_long?:  vector "rope_factors_long"  [n_rot / 2];
        rope_short?: vector "rope_factors_short" [n_rot / 2];

        layer {
            attn_norm: vector "attn_norm"   [n_embd];
            wq:        linear "attn_q"      [n_embd -> n_head * head_dim];
            wk:        linear "attn_k"      [n_embd -> n_head_kv * head_dim];
            wv:        linear "attn_v"      [n_embd -> n_head_kv * head_dim_v];
            wo:        linear "attn_output" [n_head * head_dim_v -> n_embd];
            ffn_norm:  vector "ffn_norm"    [n_embd];
            up:        linear "ffn_up"      [n_embd -> 2 * n_ff];  // the gate's rows, then the values'
            down:      linear "ffn_down"    [n_ff -> n_embd];
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm, eps);
            let q = rope(heads(wq(h), n_head), factors = rope_short, long_factors = rope_long);
            let k = rope(heads(wk(h), n_head_kv), factors = rope_short, long_factors = rope_long);
            let v = heads(wv(h), n_head_kv);
            x += wo(attention(q, k, v));
            let h = rms_norm(x, ffn_norm, eps);
            let h = up(h);
            x += down(silu(h[..n_ff]) * h[n_ff..]);
        }
        output(rms_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
