//! Granite 3 and 4, dense or with experts and a shared expert: Llama with multipliers for embeddings,
//! attention, residual branches, and logits. Some models have no rotary positions.

arch_macros::arch! {
    name: "granite";
    like: "llama";

    hparams {
        logit_scale: f32 = "logit_scale";
        let logit_divisor = logit_scale;
        check logit_divisor != 0.0, "logit_scale must not be 0 (logits are divided by it)";
        embedding_factor: f32 = "embedding_scale" or 0.0;
        residual_factor: f32 = "residual_scale" or 0.0;
        attention_factor: f32 = "attention.scale" or 0.0;
        use_rope: bool = "rope.scaling.finetuned" or true;
        n_ff_shexp: usize = "expert_shared_feed_forward_length" or 0;
        // Number of the features that a layer adds, starting at 1, or -1 for none (Granite Vision).
        deep: [f32] = "deepstack_mapping" or -1.0;
        let n_deep = count(deep >= 0.0);
        check deep == -1.0 || deep >= 1.0 && deep <= n_deep && deep % 1.0 == 0.0,
              "deepstack_mapping must contain -1 or the number of features";
        // A factor of 0 disables the scaling.
        let embedding_scale = if embedding_factor == 0.0 { 1.0 } else { embedding_factor };
        let residual_scale = if residual_factor == 0.0 { 1.0 } else { residual_factor };
        let kq_scale = if attention_factor == 0.0 { 1.0 / sqrt(head_dim) } else { attention_factor };
        let has_shared = n_expert > 0 && n_ff_shexp > 0;
    }

    tensors {
        layer {
            if has_shared {
                use shared_experts(width = n_ff_shexp);
            }
        }
    }

    graph {
        // Images are not scaled, unlike audio.
        let x = if n_deep > 0 {
            with_media(token_embd[tokens] * embedding_scale)
        } else {
            with_media(token_embd[tokens]) * embedding_scale
        };
        for layer {
            if deep >= 0.0 {
                x = deepstack(x, deep);
            }
            let h = rms_norm(x, attn_norm);
            x += attend(h, rotated = use_rope, factors = rope_freqs, short = rope_short, long = rope_long,
                        scale = kq_scale) * residual_scale;
            x += ffn_and_shared(rms_norm(x, ffn_norm)) * residual_scale;
        }
        output(rms_norm(x, output_norm)) / logit_divisor
    }

    fn ffn_and_shared(h) {
        let y = ffn_or_experts(h);
        if has_shared {
            y += shared_experts(h);
        }
        y
    }

    checkpoint "GraniteForCausalLM" like "LlamaForCausalLM" {
        logit_scale = "logits_scaling" or 1.0;
        embedding_factor = "embedding_multiplier" or 1.0;
        residual_factor = "residual_multiplier" or 1.0;
        attention_factor = "attention_multiplier" or 1.0;
        without gate_shexp, up_shexp, down_shexp "the class has no experts";
    }

    test { n_embd: 256, n_head: 4, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
