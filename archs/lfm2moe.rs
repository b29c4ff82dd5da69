//! LFM2 with experts: dense leading layers, then experts selected with a bias and weighted by normalized
//! scores.

arch_macros::arch! {
    name: "lfm2moe";
    like: "lfm2";

    hparams {
        without n_swa;
        n_dense: usize = "leading_dense_block_count" or 0;
        n_ff_exp: [usize] = "expert_feed_forward_length";
        gating_func: usize = "expert_gating_func";
        check gating_func != 0 && gating_func <= 4, "expert_gating_func must be 1 to 4";
    }

    tensors {
        layer {
            if il < n_dense {
                use gated_ffn;
            } else {
                use experts(width = n_ff_exp);
                probs_bias: raw "exp_probs_b.bias" [n_expert];
            }
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm);
            x += if recurrent { short_conv_mixer(h) } else { attend(h) };
            let h = rms_norm(x, ffn_norm);
            x += if il < n_dense { ffn(h) } else { routed(h, gating = gating_func, selection_bias = probs_bias) };
        }
        output(rms_norm(x, output_norm))
    }

    test {
        n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, l_cache: 3, n_expert: 2, n_expert_used: 2,
        n_ff_exp: 384, gating_func: 2
    }
}
