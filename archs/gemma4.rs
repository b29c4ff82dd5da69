//! Gemma 4: Gemma 3 with a different head size in sliding-window layers, proportional rotary frequencies in
//! full layers, per-layer token embeddings, shared keys and values in the last layers, and experts in
//! parallel with the feed-forward network.

arch_macros::arch! {
    name: "gemma4";
    rope: neox;

    hparams {
        head_dim_swa: usize = "attention.key_length_swa";
        head_dim_v_swa: usize = "attention.value_length_swa";
        swa_pattern: [bool] = "attention.sliding_window_pattern";
        n_rot_swa: usize = "rope.dimension_count_swa" or n_rot;
        n_pl: usize = "embedding_length_per_layer_input";
        n_ff_exp: [usize] = "expert_feed_forward_length" or 0;
        let d = if is_swa { head_dim_swa } else { head_dim };
        let n_full = count(!swa_pattern);
        check head_dim == head_dim_v && head_dim_swa == head_dim_v_swa,
              "attention.key_length must equal attention.value_length, and attention.key_length_swa must equal attention.value_length_swa";
    }

    tensors {
        use tied_output, logit_softcap(cap = 30.0);
        if n_full > 0 {
            rope_freqs: vector [head_dim / 2];
        }
        if n_pl > 0 {
            use per_layer_embeddings;
        }

        layer {
            attn_norm: vector [n_embd];
            attn_post_norm, ffn_post_norm: vector "post_attention_norm", "post_ffw_norm" [n_embd];
            use shared_kv_attention(head_dim_k = d, head_dim_v = d), parallel_experts;
            override wv?: linear "attn_v" [n_embd -> n_head_kv * d];
            out_scale?: vector "layer_output_scale" [1];
            if n_pl > 0 {
                use per_layer_input;
            }
        }
    }

    fn rotate(x) {
        if n_full > 0 && !is_swa {
            rope(x, factors = rope_freqs, dims = n_rot)
        } else {
            rope(x, base = rope_base_swa, scale = 1.0, dims = n_rot_swa)
        }
    }

    // Without a value projection, the keys before their norm are the values.
    fn value(x, key) {
        if has(wv) { wv(x) } else { key }
    }

    graph {
        let x = token_embd[tokens] * sqrt(n_embd);
        let per_layer = if n_pl > 0 { per_layer_embeddings(x) };
        for layer {
            x += rms_norm(attend(rms_norm(x, attn_norm)), attn_post_norm);
            x += rms_norm(ffn_and_experts(x), ffn_post_norm);
            if n_pl > 0 {
                x += per_layer_input(x, per_layer);
            }
            if has(out_scale) {
                x *= out_scale;
            }
        }
        cap_logits(output(rms_norm(x, output_norm)))
    }

    test { n_embd: 128, n_head: 2, n_layer: 5, n_ff: 192, n_vocab: 128, n_swa: 32, n_pl: 64, head_dim_swa: 64, head_dim_v_swa: 64 }
}
