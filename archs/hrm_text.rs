//! HRM-Text: two stacks of layers over the same tokens. In each cycle the low stack runs several times, then
//! the high stack once; every run has its own keys and values. RMS norms without weights, and a sigmoid gate
//! before each attention output.

arch_macros::arch! {
    name: "hrm_text";
    rope: neox;

    hparams {
        embedding_scale: f32 = "embedding_scale" or 0.0;
        let scale = if embedding_scale == 0.0 { 1.0 } else { embedding_scale };
        n_stack: usize = "hrm.layers_per_stack";
        n_high: usize = "hrm.h_cycles";
        n_low: usize = "hrm.l_cycles";
        check n_layer == n_stack * n_high * (n_low + 1), "block_count must equal hrm.layers_per_stack * hrm.h_cycles * (hrm.l_cycles + 1)";
        check n_stack > 0 && n_high > 0 && n_low > 0, "hrm.layers_per_stack, hrm.h_cycles, and hrm.l_cycles must not be 0";
    }

    tensors {
        token_embd: embed  "token_embd"   [n_embd, n_vocab];
        output:     linear "output"       [n_embd -> n_vocab] or token_embd;
        low_init:   raw    "hrm.z_l_init" [n_embd];

        // Layers of the low stack, then of the high stack.
        layer stack "blk" 2 * n_stack {
            use self_attention, gated_ffn;
            attn_gate: linear [n_embd -> n_head * head_dim_v];
        }
    }

    graph {
        let high = token_embd[tokens] * scale;
        let low = high * 0.0 + low_init; // every token starts from the same state
        for _ in 0..n_high {
            for run in 0..n_low + 1 {
                let first = if run < n_low { 0 } else { n_stack };
                let x = high + low;
                for stack in first..first + n_stack {
                    let h = rms_norm(x);
                    x += wo(attend_heads(h) * sigmoid(attn_gate(h)));
                    x += ffn(rms_norm(x));
                }
                if run < n_low {
                    low = rms_norm(x);
                } else {
                    high = rms_norm(x);
                }
            }
        }
        output(high)
    }

    test { n_embd: 256, n_head: 2, n_layer: 6, n_ff: 384, n_vocab: 128, n_stack: 1, n_high: 2, n_low: 2 }
}
