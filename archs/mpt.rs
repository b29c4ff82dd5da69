//! MPT: ALiBi instead of positions and layer norms, with optional clamping of projections, norms over all
//! query and key heads, learned positions, and scaled activations.

arch_macros::arch! {
    name: "mpt";
    rope: none;

    hparams {
        alibi: f32 = "attention.max_alibi_bias" or 0.0;
    }

    tensors {
        use tied_output(kind = norm);
        position_embd?: embed "position_embd" [n_embd, n_ctx_train];

        layer {
            attn_norm, ffn_norm: norm [n_embd];
            use clipped_attention;
            q_norm?: norm "attn_q_norm" [n_head * head_dim];
            k_norm?: norm "attn_k_norm" [n_head_kv * head_dim];
            use plain_ffn;
            act_div?: raw "ffn.act.scales" [n_ff];
        }
    }

    fn queries(x) {
        let q = clip_qkv(wq(x));
        heads(if has(q_norm) { layer_norm(q, q_norm) } else { q }, n_head)
    }

    // Files have both norms or neither; a key norm alone is ignored.
    fn keys(x) {
        let k = clip_qkv(wk(x));
        heads(if has(q_norm) && has(k_norm) { layer_norm(k, k_norm) } else { k }, n_head_kv)
    }

    graph {
        let x = token_embd[tokens];
        if has(position_embd) {
            x += position_embd[positions];
        }
        for layer {
            x += attend(layer_norm(x, attn_norm), rotated = false, alibi = alibi);
            let h = gelu_erf(up(layer_norm(x, ffn_norm)));
            if has(act_div) {
                h = h / act_div;
            }
            x += down(h);
        }
        output(layer_norm(x, output_norm))
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
