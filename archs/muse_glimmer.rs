//! Muse Glimmer: a norm without weights on the embedding, rotary positions in windowed layers only, gated attention, norms per head
//! and after each block, scaled and capped logits.

arch_macros::arch! {
    name: "muse-glimmer";
    rope: norm;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        n_swa: usize = "attention.sliding_window";
        is_swa: pattern = "attention.sliding_window_pattern" or 4;
        rope_base_swa: f32 = "rope.freq_base_swa" or rope_freq_base;
        logit_scale: f32 = "logit_scale";
        logit_cap: f32 = "final_logit_softcapping" or 30.0;
        // The norms after the blocks have an epsilon of their own, which no key holds.
        let post_eps = 0.00000001;
        check n_swa > 0, "attention.sliding_window is not 0";
    }

    tensors {
        use own_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention;
            attn_gate: linear "attn_gate"           [n_embd -> n_head * head_dim_v];
            q_norm:    vector "attn_q_norm"         [head_dim];
            k_norm:    vector "attn_k_norm"         [head_dim];
            attn_post: vector "post_attention_norm" [n_embd];
            ffn_post:  vector "post_ffw_norm"       [n_embd];
            use gated_ffn;
        }
    }

    graph {
        let x = rms_norm(token_embd[tokens], eps);
        for layer {
            let h = rms_norm(x, attn_norm, eps);
            let q = rms_norm(heads(wq(h), n_head), q_norm, eps);
            let k = rms_norm(heads(wk(h), n_head_kv), k_norm, eps);
            if is_swa {
                q = rope(q, base = rope_base_swa);
                k = rope(k, base = rope_base_swa);
            }
            let a = attention(q, k, heads(wv(h), n_head_kv), window = standard(n_swa, is_swa));
            x += rms_norm(wo(sigmoid(attn_gate(h)) * a), attn_post, post_eps);
            x += rms_norm(ffn(rms_norm(x, ffn_norm, eps)), ffn_post, post_eps);
        }
        let logits = output(rms_norm(x, output_norm, eps)) * logit_scale;
        if logit_cap > 0.0 { softcap(logits, logit_cap) } else { logits }
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_swa: 32 }
}
