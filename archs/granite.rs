//! Granite 3 and 4, dense and with experts, a shared one among them: Llama with factors on embeddings, attention,
//! residual branches and logits; some files rotate nothing.

arch_macros::arch! {
    name: "granite";
    rope: norm;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        logit_scale: f32 = "logit_scale";
        check logit_scale != 0.0, "logit_scale, by which logits are divided, is not 0";
        embedding_factor: f32 = "embedding_scale" or 0.0;
        residual_factor: f32 = "residual_scale" or 0.0;
        attention_factor: f32 = "attention.scale" or 0.0;
        use_rope: bool = "rope.scaling.finetuned" or true;
        n_ff_shexp: usize = "expert_shared_feed_forward_length" or 0;
        // A factor of 0 says that there is none.
        let embedding_scale = if embedding_factor == 0.0 { 1.0 } else { embedding_factor };
        let residual_scale = if residual_factor == 0.0 { 1.0 } else { residual_factor };
        let kq_scale = if attention_factor == 0.0 { 1.0 / sqrt(head_dim) } else { attention_factor };
    }

    tensors {
        use tied_output;
        use rope_factors;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention;
            if n_expert == 0 {
                use gated_ffn;
            } else {
                router:     linear  "ffn_gate_inp"  [n_embd -> n_expert];
                gate_exps?: experts "ffn_gate_exps" [n_embd -> n_ff; n_expert];
                up_exps:    experts "ffn_up_exps"   [n_embd -> n_ff; n_expert];
                down_exps:  experts "ffn_down_exps" [n_ff -> n_embd; n_expert];
            }
            if n_expert > 0 && n_ff_shexp > 0 {
                use shared_experts(width = n_ff_shexp);
            }
        }
    }

    graph {
        let x = token_embd[tokens] * embedding_scale;
        for layer {
            let h = rms_norm(x, attn_norm, eps);
            let q = heads(wq(h), n_head);
            let k = heads(wk(h), n_head_kv);
            let v = heads(wv(h), n_head_kv);
            if use_rope {
                q = rope(q, factors = rope_freqs, short = rope_short, long = rope_long);
                k = rope(k, factors = rope_freqs, short = rope_short, long = rope_long);
            }
            x += wo(attention(q, k, v, scale = kq_scale)) * residual_scale;
            let h = rms_norm(x, ffn_norm, eps);
            if n_expert == 0 {
                x += ffn(h) * residual_scale;
            } else {
                let ffn = moe(h, router = router(h), gate = gate_exps, up = up_exps, down = down_exps, act = silu,
                          gating = softmax, n_used = n_expert_used, norm_weights = true);
                if n_expert > 0 && n_ff_shexp > 0 {
                    ffn += shared(h);
                }
                x += ffn * residual_scale;
            }
        }
        output(rms_norm(x, output_norm, eps)) / logit_scale
    }

    test { n_embd: 256, n_head: 4, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
