//! Gemma 2: Gemma with sliding windows in every other layer, norms before and after each block, and soft caps
//! on scores and logits.

arch_macros::arch! {
    name: "gemma2";
    rope: neox;

    models {
        "27B": n_layer == 46;
        "published": n_layer == 26 || n_layer == 42 || n_layer == 46;
    }

    hparams {
        attn_cap: f32 = "attn_logit_softcapping" or 50.0;
        scale_of_file: f32 = "attention.scale" or 0.0;
        // Most files do not contain the scale. Only the 27B model scales by the width per head instead of the head
        // size.
        let usual_scale = if model_is("27B") { 1.0 / sqrt(1.0 * n_embd / n_head) } else { 1.0 / sqrt(head_dim) };
        let kq_scale = if scale_of_file > 0.0 { scale_of_file } else { usual_scale };
        warn given(scale_of_file) || model_is("published"),
             "attention.scale is missing: scores are scaled by the head size, but models of this depth may have another query_pre_attn_scalar";
    }

    tensors {
        use tied_output, logit_softcap(cap = 30.0), sliding_window(length = 4096, period = 2);

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention, gated_ffn;
            attn_post_norm, ffn_post_norm: vector "post_attention_norm", "post_ffw_norm" [n_embd];
        }
    }

    graph {
        let x = token_embd[tokens] * sqrt(n_embd);
        for layer {
            let h = rms_norm(x, attn_norm);
            let attn = attend(h, base = rope_base, scale = kq_scale, softcap = attn_cap, window = sliding(n_swa, is_swa));
            x += rms_norm(attn, attn_post_norm);
            x += rms_norm(ffn(rms_norm(x, ffn_norm), act = gelu), ffn_post_norm);
        }
        cap_logits(output(rms_norm(x, output_norm)))
    }

    checkpoint "Gemma2ForCausalLM" {
        head_dim = "head_dim" or 256;
        check given("attn_logit_softcapping"), "attn_logit_softcapping must be a number for this architecture";
        attn_cap = "attn_logit_softcapping";
        logit_cap = "final_logit_softcapping" or 0.0;
        scale_of_file = 1.0 / sqrt(first("query_pre_attn_scalar", 256));
        n_swa = "sliding_window" or 4096;
        swa_pattern = "layer_types" == text("sliding_attention") or 2;
        output_norm <- "model.norm" plus 1;
        layer {
            attn_norm <- ".input_layernorm" plus 1;
            attn_post_norm <- ".post_attention_layernorm" plus 1;
            ffn_norm <- ".pre_feedforward_layernorm" plus 1;
            ffn_post_norm <- ".post_feedforward_layernorm" plus 1;
        }
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 1, n_layer: 2, n_ff: 384, n_vocab: 128, n_swa: 32 }
}
