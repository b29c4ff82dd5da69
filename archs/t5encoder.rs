//! The encoder of T5 by itself, for embeddings: no positions but biases by relative position on attention scores, and a feed-forward
//! network with a GELU gate or, without a gate in the file, with ReLU.

arch_macros::arch! {
    name: "t5encoder";
    rope: none;
    attention: bidirectional;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        n_buckets: usize = "attention.relative_buckets_count";
    }

    tensors {
        token_embd: embed  "token_embd"      [n_embd, n_vocab];
        enc_norm:   vector "enc.output_norm" [n_embd];
        ignore "output";

        layer enc "enc.blk" n_layer {
            attn_norm: vector "attn_norm"  [n_embd];
            rel_b?:    vector "attn_rel_b" [n_head, n_buckets];
            wq:        linear "attn_q"     [n_embd -> n_head * head_dim];
            wk:        linear "attn_k"     [n_embd -> n_head_kv * head_dim];
            wv:        linear "attn_v"     [n_embd -> n_head_kv * head_dim_v];
            wo:        linear "attn_o"     [n_head * head_dim_v -> n_embd];
            ffn_norm:  vector "ffn_norm"   [n_embd];
            gate?:     linear "ffn_gate"   [n_embd -> n_ff];
            up:        linear "ffn_up"     [n_embd -> n_ff];
            down:      linear "ffn_down"   [n_ff -> n_embd];
        }
    }

    fn attend(h, bias) {
        let q = heads(wq(h), n_head);
        let k = heads(wk(h), n_head_kv);
        wo(attention(q, k, heads(wv(h), n_head_kv), scale = 1.0, relative = bias))
    }

    fn ffn(h) {
        if has(gate) { down(gelu(gate(h)) * up(h)) } else { down(relu(up(h))) }
    }

    graph {
        let x = token_embd[tokens];
        for enc {
            // A layer without biases of its own has those of the first.
            let bias = if has(rel_b) { rel_b } else { rust!([n_head, n_buckets] => b.weight_or_fail(m.w.enc[0].rel_b, "attn_rel_b")) };
            x += attend(rms_norm(x, attn_norm, eps), bias);
            x += ffn(rms_norm(x, ffn_norm, eps));
        }
        rms_norm(x, enc_norm, eps)
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_buckets: 8 }
}
