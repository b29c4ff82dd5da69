//! Refact: ALiBi instead of positions, a single key and value head, SwiGLU.

arch_macros::arch! {
    name: "refact";
    rope: none;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
    }

    tensors {
        token_embd:  embed  "token_embd"  [n_embd, n_vocab];
        output_norm: vector "output_norm" [n_embd];
        output:      linear "output"      [n_embd -> n_vocab] or token_embd;
        // Files may carry these; the model has no use for them.
        ignore "rope_freqs", "rope_factors_long", "rope_factors_short";
        ignore "attn_output.bias", "ffn_gate.bias", "ffn_up.bias", "ffn_down.bias";

        layer {
            attn_norm: vector "attn_norm"   [n_embd];
            wq:        linear "attn_q"      [n_embd -> n_head * head_dim];
            wk:        linear "attn_k"      [n_embd -> n_head_kv * head_dim];
            wv:        linear "attn_v"      [n_embd -> n_head_kv * head_dim_v];
            wo:        linear "attn_output" [n_head * head_dim_v -> n_embd];
            ffn_norm:  vector "ffn_norm"    [n_embd];
            if n_expert == 0 {
                gate:      linear "ffn_gate"    [n_embd -> n_ff];
                up:        linear "ffn_up"      [n_embd -> n_ff];
                down:      linear "ffn_down"    [n_ff -> n_embd];
            } else {
                // No model was published with experts: files that declare some are read, and their experts stay unused.
                ignore "ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps";
            }
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm, eps);
            let q = heads(wq(h), n_head);
            let k = heads(wk(h), n_head_kv);
            let v = heads(wv(h), n_head_kv);
            // 8 is the largest bias of the ALiBi paper.
            x += wo(attention(q, k, v, alibi = 8.0));
            let h = rms_norm(x, ffn_norm, eps);
            x += if n_expert == 0 { down(silu(gate(h)) * up(h)) } else { silu(h) };
        }
        output(rms_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
