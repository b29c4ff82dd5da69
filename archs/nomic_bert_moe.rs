//! Nomic Embed 2: BERT with rotary positions and a mixture of experts in every n-th layer.

arch_macros::arch! {
    name: "nomic-bert-moe";
    like: "jina-bert-v3";

    hparams {
        moe_every: usize = "moe_every_n_layers" or 0;
    }

    tensors {
        layer {
            if moe_every > 0 && il % moe_every == 1 {
                router:    linear  "ffn_gate_inp"  [n_embd -> n_expert];
                up_exps:   experts "ffn_up_exps"   [n_embd -> n_ff; n_expert];
                down_exps: experts "ffn_down_exps" [n_ff -> n_embd; n_expert];
            } else {
                up:   linear "ffn_up"   [n_embd -> n_ff];
                down: linear "ffn_down" [n_ff -> n_embd];
            }
        }
    }

    fn ffn(x) {
        if moe_every > 0 && il % moe_every == 1 {
            moe(x, router = router(x), up = up_exps, down = down_exps, act = gelu_erf, gating = softmax,
                n_used = n_expert_used, norm_weights = false)
        } else {
            down(gelu_erf(up(x)))
        }
    }

    test {
        n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_token_types: 2, n_expert: 2, n_expert_used: 2,
        moe_every: 2
    }
}
