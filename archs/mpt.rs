//! MPT: ALiBi instead of positions, layer norms, optionally clamped projections, norms over all query and key heads, learned
//! positions and scaled activations.

arch_macros::arch! {
    name: "mpt";
    rope: none;

    hparams {
        eps: f32 = "attention.layer_norm_epsilon";
        alibi: f32 = "attention.max_alibi_bias" or 0.0;
    }

    tensors {
        use tied_output(kind = norm);
        position_embd?: embed "position_embd" [n_embd, n_ctx_train];

        layer {
            attn_norm, ffn_norm: norm [n_embd];
            use self_attention, clamped_projections;
            q_norm?: norm "attn_q_norm" [n_head * head_dim];
            k_norm?: norm "attn_k_norm" [n_head_kv * head_dim];
            use plain_ffn;
            act_div?: raw "ffn.act.scales" [n_ff];
        }
    }

    graph {
        let x = token_embd[tokens];
        if has(position_embd) { x += position_embd[positions]; }
        for layer {
            let h = layer_norm(x, attn_norm, eps);
            let q = clamped(wq(h));
            let k = clamped(wk(h));
            let v = heads(clamped(wv(h)), n_head_kv);
            if has(q_norm) { q = layer_norm(q, q_norm, eps); }
            // Files have both norms or none; a key norm alone is not applied by any engine.
            if has(q_norm) && has(k_norm) { k = layer_norm(k, k_norm, eps); }
            let a = attention(heads(q, n_head), heads(k, n_head_kv), v, alibi = alibi);
            x += wo(a);
            let h = gelu(up(layer_norm(x, ffn_norm, eps)));
            if has(act_div) { h = h / act_div; }
            x += down(h);
        }
        output(layer_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
