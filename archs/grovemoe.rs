//! GroveMoE: Qwen3 MoE with sigmoid routing, followed by smaller adjugate experts that each serve a group of
//! experts.

arch_macros::arch! {
    name: "grovemoe";
    like: "qwen3moe";

    hparams {
        n_ff_exp: [usize] = "expert_feed_forward_length";
        n_ff_adjugate: usize = "expert_chunk_feed_forward_length" or head_dim;
        group_scale: f32 = "expert_group_scale";
        group_size: usize = "experts_per_group";
        check group_size > 0 && n_expert % max(group_size, 1) == 0, "experts_per_group must divide expert_count";
        let n_adjugate = n_expert / max(group_size, 1);
    }

    tensors {
        layer {
            gate_adjugates: experts "ffn_gate_chexps" [n_embd -> n_ff_adjugate; n_adjugate];
            up_adjugates:   experts "ffn_up_chexps"   [n_embd -> n_ff_adjugate; n_adjugate];
            down_adjugates: experts "ffn_down_chexps" [n_ff_adjugate -> n_embd; n_adjugate];
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(rms_norm(x, attn_norm));
            let h = rms_norm(x, ffn_norm);
            let scores = router(h);
            let selection = sigmoid(scores);
            let y = moe(h, router = scores, selection = selection, gate = gate_exps, up = up_exps, down = down_exps,
                        act = silu, gating = softmax, n_used = n_expert_used, norm_weights = true);
            // The outputs of the experts pass through the small experts of their groups.
            let adjugate = moe(y, router = scores, selection = selection, gate = gate_adjugates, up = up_adjugates,
                               down = down_adjugates, act = silu, gating = softmax,
                               n_used = min(n_expert_used, n_adjugate), norm_weights = true,
                               ids_per_expert = group_size);
            x += y + adjugate * group_scale;
        }
        output(rms_norm(x, output_norm))
    }

    test {
        n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 4, n_expert_used: 2, n_ff_exp: 384,
        group_size: 2
    }
}
