//! Llama 4: chunked attention; every fourth layer has full attention without rotary positions and with a
//! position-dependent temperature. Experts in every n-th layer, plus a shared expert; the routing weights
//! scale the experts' input instead of the output.

arch_macros::arch! {
    name: "llama4";
    rope: norm;

    models {
        "Maverick": n_expert == 128;
        "published": n_layer == 48;
    }

    hparams {
        // The temperature increases after every `n` positions.
        let temperature_length = 8192;
        let rotated = n_swa == 0 || (il + 1) % 4 != 0;
        let has_qk_norm = !model_is("Maverick");
        check n_expert > 0, "expert_count must not be 0";
        moe_step: usize = "interleave_moe_layer_step";
        let has_experts = moe_step > 0 && (il + 1) % max(moe_step, 1) == 0;
        n_ff_exp: [usize] = "expert_feed_forward_length";
        // Most files do not contain the size of a chunk.
        warn given(n_swa) || model_is("published"),
             "attention.sliding_window is missing: chunks have 8192 positions, but models of this depth may have another attention_chunk_size";
    }

    tensors {
        use tied_output, rope_factors, sliding_window(length = 8192, period = 4);

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention;
            if has_experts {
                use experts(width = n_ff_exp), shared_experts(width = n_ff_exp);
            } else {
                use gated_ffn;
            }
        }
    }

    fn rotate(x) {
        let y = rope(x, factors = rope_freqs, short = rope_short, long = rope_long, base = rope_base);
        if has_qk_norm { rms_norm(y) } else { y }
    }

    graph {
        let x = with_media(token_embd[tokens]);
        for layer {
            let h = rms_norm(x, attn_norm);
            let q = heads(wq(h), n_head);
            let k = heads(wk(h), n_head_kv);
            if rotated {
                q = rotate(q);
                k = rotate(k);
            } else {
                q = q * attention_temperature(0.1, temperature_length, 1.0);
            }
            x += wo(attention(q, k, heads(wv(h), n_head_kv), window = chunked(n_swa, is_swa)));
            let h = rms_norm(x, ffn_norm);
            if has_experts {
                let scores = router(h);
                x += routed(h, scores = scores, selection = scores, gating = sigmoid, norm_weights = false, weigh_input = true)
                    + shared_experts(h);
            } else {
                x += ffn(h);
            }
        }
        output(rms_norm(x, output_norm))
    }

    test {
        n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 4, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2,
        n_ff_exp: 384, moe_step: 2
    }
}
