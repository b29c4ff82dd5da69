//! Nomic Embed 2: BERT with rotary positions, a mixture of experts in every n-th layer.

arch_macros::arch! {
    name: "nomic-bert-moe";
    like: "jina-bert-v3";

    hparams {
        moe_every: usize = "moe_every_n_layers" or 0;
        w_scale: f32 = "expert_weights_scale" or 1.0;
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

    graph {
        let x = token_embd[tokens];
        if has(token_types) { x += row(token_types, 0); }
        let x = layer_norm(x, token_embd_norm, eps);
        for layer {
            let q = rope(heads(wq(x), n_head));
            let k = rope(heads(wk(x), n_head_kv));
            let v = heads(wv(x), n_head_kv);
            x = layer_norm(x + wo(attention(q, k, v)), attn_output_norm, eps);
            if moe_every > 0 && il % moe_every == 1 {
                x += moe(x, router = router(x), up = up_exps, down = down_exps, act = gelu, gating = softmax,
                         n_used = n_expert_used, norm_weights = false, scale = w_scale);
            } else {
                x += down(gelu(up(x)));
            }
            x = layer_norm(x, layer_output_norm, eps);
        }
        x
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_token_types: 2, n_expert: 2, n_expert_used: 2, moe_every: 2 }
}
