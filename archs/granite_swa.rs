//! Granite with windowed layers: sinks in every head, layers without rotary positions by the file, factors on embeddings, residual
//! branches and logits.

arch_macros::arch! {
    name: "granite_swa";
    rope: norm;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        n_swa: usize = "attention.sliding_window";
        is_swa: [bool] = "attention.sliding_window_pattern";
        rotates: [bool] = "attention.rope_pattern" or true;
        logit_scale: f32 = "logit_scale";
        embedding_factor: f32 = "embedding_scale" or 0.0;
        residual_factor: f32 = "residual_scale" or 0.0;
        attention_factor: f32 = "attention.scale" or 0.0;
        n_ff_shexp: usize = "expert_shared_feed_forward_length" or 0;
        // A factor of 0 says that there is none.
        let embedding_scale = if embedding_factor == 0.0 { 1.0 } else { embedding_factor };
        let residual_scale = if residual_factor == 0.0 { 1.0 } else { residual_factor };
        let kq_scale = if attention_factor == 0.0 { 1.0 / sqrt(head_dim) } else { attention_factor };
        let has_shared = n_expert > 0 && n_ff_shexp > 0;
        check n_swa > 0, "the sliding window holds at least one position";
        check logit_scale != 0.0, "logit_scale, by which logits are divided, is not 0";
    }

    tensors {
        use tied_output;
        rope_freqs?: vector "rope_freqs" [n_rot / 2];

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention;
            sinks: vector "attn_sinks" [n_head];
            if n_expert == 0 {
                use gated_ffn;
            } else {
                use experts;
            }
            if has_shared {
                up_shexp:   linear "ffn_up_shexp"   [n_embd -> 2 * n_ff_shexp]; // the gate's rows, then the values'
                down_shexp: linear "ffn_down_shexp" [n_ff_shexp -> n_embd];
            }
        }
    }

    graph {
        let x = token_embd[tokens] * embedding_scale;
        for layer {
            let h = rms_norm(x, attn_norm, eps);
            let q = heads(wq(h), n_head);
            let k = heads(wk(h), n_head_kv);
            if rotates {
                q = rope(q, factors = rope_freqs);
                k = rope(k, factors = rope_freqs);
            }
            let a = attention(q, k, heads(wv(h), n_head_kv), scale = kq_scale, sinks = sinks, window = standard(n_swa,
                                                                                                                is_swa));
            x += wo(a) * residual_scale;
            let h = rms_norm(x, ffn_norm, eps);
            if n_expert == 0 {
                x += ffn(h) * residual_scale;
            } else {
                let ffn = routed(h);
                if has_shared {
                    let s = up_shexp(h);
                    ffn += down_shexp(silu(s[..n_ff_shexp]) * s[n_ff_shexp..]);
                }
                x += ffn * residual_scale;
            }
        }
        output(rms_norm(x, output_norm, eps)) / logit_scale
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_swa: 32 }
}
