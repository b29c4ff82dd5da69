//! Dots 3 Note: the encoder of dots.ocr with norms of queries and keys. Listed layers have experts instead of a
//! feed-forward network.

arch_macros::encoder! {
    name: "dots3note_v";
    like: "dots_ocr";

    hparams {
        merge: usize = "spatial_merge_size" or 2;
        n_experts: [usize] = "expert_count_per_layer";
        n_ff_exp: usize = "expert_feed_forward_length" or file_rows("v.blk.{}.ffn_gate_exps.weight");
    }

    tensors {
        without gate, up, down;
        layer {
            use head_norms;
            if n_experts > 0 {
                router:         linear "ffn_gate_inp"       [n_embd -> n_experts];
                selection_bias: raw    "exp_probs_b.weight" [n_experts];
                gate_exps, up_exps: experts "ffn_gate_exps", "ffn_up_exps" [n_embd -> n_ff_exp; n_experts];
                down_exps: experts "ffn_down_exps" [n_ff_exp -> n_embd; n_experts];
            } else {
                use gated_ffn;
            }
        }
    }

    fn attend(x: [n_embd, T]) {
        normed_attention(x)
    }

    fn ffn(x: [n_embd, T]) {
        if n_experts > 0 {
            moe(x, router = router(x), gate = gate_exps, up = up_exps, down = down_exps, act = silu, gating = sigmoid,
                n_used = min(n_expert_used, n_experts), norm_weights = true, selection_bias = selection_bias)
        } else {
            down(silu(gate(x)) * up(x))
        }
    }

    test {
        n_embd: 64, n_head: 4, n_layer: 3, n_ff: 96, patch_size: 8, merge: 2, n_out: 64, min_pixels: 2048,
        max_pixels: 20480, n_expert_used: 2, n_experts: 4, n_ff_exp: 48
    }
}
