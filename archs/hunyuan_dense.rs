//! Hunyuan, dense: grouped-query attention, SwiGLU; RMS norms on each query and key head after the rotation, whose
//! base grows with an extension factor.

arch_macros::arch! {
    name: "hunyuan-dense";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        alpha: f32 = "rope.scaling.alpha" or 0.0;
        // Positions stretched by alpha at the lowest frequency, not at all at the highest.
        let stretch = if alpha > 0.0 { pow(alpha, 1.0 * head_dim / (head_dim - 2.0)) } else { 1.0 };
        let rope_base = rope_freq_base * stretch;
    }

    tensors {
        token_embd:  embed  "token_embd"  [n_embd, n_vocab];
        output_norm: vector "output_norm" [n_embd];
        output:      linear "output"      [n_embd -> n_vocab] or token_embd;

        layer {
            attn_norm: vector "attn_norm"   [n_embd];
            wq:        linear "attn_q"      [n_embd -> n_head * head_dim];
            wk:        linear "attn_k"      [n_embd -> n_head_kv * head_dim];
            wv:        linear "attn_v"      [n_embd -> n_head_kv * head_dim_v];
            q_norm:    vector "attn_q_norm" [head_dim];
            k_norm:    vector "attn_k_norm" [head_dim];
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
            let q = rms_norm(rope(heads(wq(h), n_head), base = rope_base), q_norm, eps);
            let k = rms_norm(rope(heads(wk(h), n_head_kv), base = rope_base), k_norm, eps);
            let v = heads(wv(h), n_head_kv);
            x += wo(attention(q, k, v));
            let h = rms_norm(x, ffn_norm, eps);
            x += down(silu(gate(h)) * up(h));
        }
        output(rms_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 4, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
