//! PLM: keys and values of all heads from one compressed vector, the rotated part of the keys shared by the heads, a feed-forward
//! network of squared ReLUs without a gate.

arch_macros::arch! {
    name: "plm";
    rope: norm;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        n_lora_kv: usize = "attention.kv_lora_rank";
        // Elements of a head that see no positions: the first ones.
        let n_nope = head_dim - n_rot;
    }

    tensors {
        use tied_output;

        layer {
            attn_norm, ffn_norm: vector                  [n_embd];
            wq:                  linear "attn_q"         [n_embd -> n_head * head_dim];
            kv_a:                linear "attn_kv_a_mqa"  [n_embd -> n_lora_kv + n_rot];
            kv_a_norm:           vector "attn_kv_a_norm" [n_lora_kv];
            kv_b:                linear "attn_kv_b"      [n_lora_kv -> n_head * (n_nope + head_dim_v)];
            wo:                  linear "attn_output"    [n_head * head_dim_v -> n_embd];
            use plain_ffn;
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm, eps);
            let q = rope(heads(wq(h), n_head), offset = n_nope);
            let compressed = kv_a(h);
            let rotated = rope(heads(compressed[n_lora_kv..], 1));
            let k_rope = repeat_heads(rotated, n_head);
            let kv = heads(kv_b(rms_norm(compressed[..n_lora_kv], kv_a_norm, eps)), n_head);
            let k = if n_nope > 0 {
                concat(kv[..n_nope], k_rope)
            } else {
                rust!([n_nope + n_rot, n_head, T] => k_rope) // whole heads are rotated
            };
            x += wo(attention(q, k, kv[n_nope..]));
            x += ffn(rms_norm(x, ffn_norm, eps), act = relu_sqr);
        }
        output(rms_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_lora_kv: 512 }
}
