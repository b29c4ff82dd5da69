//! Phi-3.5 with experts: layer norms, LongRoPE frequency factors for short and long contexts, and two experts
//! weighed by SparseMixer (arXiv 2310.00811).

arch_macros::arch! {
    name: "phimoe";
    rope: neox;

    models {
        "3.5": n_layer == 32 && n_expert == 16;
    }

    hparams {
        check n_expert_used == 2, "expert_used_count must be 2";
        attn_factor: f32 = "rope.scaling.attn_factor" or 1.0;
        // The published factor of this model, which differs from the LongRoPE factor in files.
        let rope_magnitude = if model_is("3.5") { 1.243163121016122 } else { attn_factor };
    }

    tensors {
        use untied_output(kind = norm);
        rope_long?:  vector "rope_factors_long"  [n_rot / 2];
        rope_short?: vector "rope_factors_short" [n_rot / 2];

        layer {
            attn_norm, ffn_norm: norm [n_embd];
            use self_attention, experts;
        }
    }

    // Weight of the expert with the largest logit, at its index: a softmax over the experts whose logits are close to
    // the largest. `is_taken` is 1 for an expert that is no longer eligible.
    fn best_weight(logits: [n_expert, T], is_taken: [n_expert, T]) {
        let eligible = logits - is_taken * 1000000000000.0;
        let is_best = top_mask(eligible, 1);
        let best = sum_rows(logits * is_best);
        // The larger of the magnitude and the best logit.
        let magnitude = clamp(relu(abs(logits) - best) + best, 1e-30, 1e30);
        let distance = neg((logits - best) / magnitude);
        // Experts farther than twice the published jitter of 0.01 get a weight of exactly 0.
        let penalty = relu(distance - 0.02) * 1e30;
        softmax(eligible - penalty) * is_best
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(layer_norm(x, attn_norm, rms_norm_eps), short = rope_short, long = rope_long,
                        magnitude = rope_magnitude);
            let h = layer_norm(x, ffn_norm, rms_norm_eps);
            let logits = router(h);
            let is_first = top_mask(logits, 1);
            let weights = best_weight(logits, is_first * 0.0) + best_weight(logits, is_first);
            x += routed(h, scores = weights, gating = none, norm_weights = false);
        }
        output(layer_norm(x, output_norm, rms_norm_eps))
    }

    test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 4, n_expert_used: 2 }
}
