//! Grok 1 and 2: norms before and after attention and the feed-forward network, soft-capped attention, and
//! GELU experts. Grok 2 adds a dense network in parallel with the experts.

arch_macros::arch! {
    name: "grok";
    rope: neox;

    hparams {
        n_ff_exp: [usize] = "expert_feed_forward_length" or n_ff;
        check n_expert > 0, "expert_count must not be 0";
        // The defaults are the values of Grok 1.
        embd_scale: f32 = "embedding_scale" or 78.38367176906169;
        kq_scale: f32 = "attention.output_scale" or 0.08838834764831845;
        attn_softcap: f32 = "attn_logit_softcapping" or 30.0;
        beta_fast: f32 = "rope.scaling.yarn_beta_fast" or 8.0;
        n_group: usize = "expert_group_count" or 1;
        n_group_used: usize = "expert_group_used_count" or 1;
    }

    tensors {
        use tied_output, logit_scale(value = 0.5773502691896257), logit_softcap(cap = 0.0);

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention;
            attn_post_norm: vector "attn_output_norm" [n_embd];
            use experts(width = n_ff_exp);
            override gate_exps?: experts "ffn_gate_exps" [n_embd -> n_ff_exp; n_expert];
            gate?, up?: linear "ffn_gate", "ffn_up" [n_embd -> n_ff];
            down?:         linear "ffn_down"          [n_ff -> n_embd];
            ffn_post_norm: vector "layer_output_norm" [n_embd] or "post_ffw_norm";
        }
    }

    graph {
        let x = token_embd[tokens] * embd_scale;
        for layer {
            let attn = attend(rms_norm(x, attn_norm), beta_fast = beta_fast, scale = kq_scale, softcap = attn_softcap);
            x += rms_norm(attn, attn_post_norm);
            let h = rms_norm(x, ffn_norm);
            let y = routed(h, act = gelu, n_groups = n_group, n_groups_used = n_group_used);
            if has(gate) && has(up) && has(down) {
                y = (down(gelu(gate(h)) * up(h)) + y) * sqrt(0.5);
            }
            x += rms_norm(y, ffn_post_norm);
        }
        cap_logits(scale_logits(output(rms_norm(x, output_norm))))
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2 }
}
