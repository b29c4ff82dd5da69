//! MiniCPM 3: keys and values of all heads from one compressed vector as in DeepSeek V2, with the fixed factors of MiniCPM on
//! embeddings, residual branches and logits.

arch_macros::arch! {
    name: "minicpm3";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        q_rank: usize = "attention.q_lora_rank";
        kv_rank: usize = "attention.kv_lora_rank";
        let n_nope = head_dim - n_rot;
        let residual_scale = 1.4 / sqrt(n_layer);
    }

    tensors {
        token_embd:  embed  "token_embd"         [n_embd, n_vocab];
        output_norm: vector "output_norm"        [n_embd];
        output:      linear "output"             [n_embd -> n_vocab] or token_embd;
        rope_short?: vector "rope_factors_short" [n_rot / 2];
        rope_long?:  vector "rope_factors_long"  [n_rot / 2];

        layer {
            attn_norm: vector "attn_norm"      [n_embd];
            q_a:       linear "attn_q_a"       [n_embd -> q_rank];
            q_a_norm:  vector "attn_q_a_norm"  [q_rank];
            q_b:       linear "attn_q_b"       [q_rank -> n_head * head_dim];
            kv_a:      linear "attn_kv_a_mqa"  [n_embd -> kv_rank + n_rot];
            kv_a_norm: vector "attn_kv_a_norm" [kv_rank];
            kv_b:      linear "attn_kv_b"      [kv_rank -> n_head * (n_nope + head_dim_v)];
            wo:        linear "attn_output"    [n_head * head_dim_v -> n_embd];
            ffn_norm:  vector "ffn_norm"       [n_embd];
            gate:      linear "ffn_gate"       [n_embd -> n_ff];
            up:        linear "ffn_up"         [n_embd -> n_ff];
            down:      linear "ffn_down"       [n_ff -> n_embd];
        }
    }

    graph {
        let x = token_embd[tokens] * 12.0;
        for layer {
            let h = rms_norm(x, attn_norm, eps);
            let q = heads(q_b(rms_norm(q_a(h), q_a_norm, eps)), n_head);
            let q = rope(q, offset = n_nope, short = rope_short, long = rope_long);
            let compressed = kv_a(h);
            let rotated = rope(heads(compressed[kv_rank..], 1), short = rope_short, long = rope_long);
            let k_rope = repeat_heads(rotated, n_head);
            let kv = heads(kv_b(rms_norm(compressed[..kv_rank], kv_a_norm, eps)), n_head);
            let k = if n_nope > 0 {
                concat(kv[..n_nope], k_rope)
            } else {
                rust!([n_nope + n_rot, n_head, T] => k_rope) // whole heads are rotated
            };
            x += wo(attention(q, k, kv[n_nope..])) * residual_scale;
            let h = rms_norm(x, ffn_norm, eps);
            x += down(silu(gate(h)) * up(h)) * residual_scale;
        }
        output(rms_norm(x, output_norm, eps) * (256.0 / n_embd))
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, q_rank: 512, kv_rank: 512 }
}
