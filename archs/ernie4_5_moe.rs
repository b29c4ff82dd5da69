//! ERNIE 4.5 with experts: experts in every n-th layer after the dense leading ones, softmax routing whose selection
//! may see a bias, and in some a shared expert.

arch_macros::arch! {
    name: "ernie4_5-moe";
    rope: norm;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        n_dense: usize = "leading_dense_block_count" or 0;
        moe_step: usize = "interleave_moe_layer_step";
        check moe_step > 0, "interleave_moe_layer_step is not 0";
        n_ff_exp: [usize] = "expert_feed_forward_length";
        n_ff_shexp: usize = "expert_shared_feed_forward_length" or 0;
        let has_experts = il >= n_dense && (il + 1) % moe_step == 0;
        let has_shared = has_experts && n_ff_shexp > 0;
    }

    tensors {
        token_embd:  embed  "token_embd"  [n_embd, n_vocab];
        output_norm: vector "output_norm" [n_embd];
        output:      linear "output"      [n_embd -> n_vocab] or token_embd;
        ignore "attn_output.bias"; // files may hold one that the published model does not use

        layer {
            attn_norm: vector "attn_norm"   [n_embd];
            wq:        linear "attn_q"      [n_embd -> n_head * head_dim];
            wk:        linear "attn_k"      [n_embd -> n_head_kv * head_dim];
            wv:        linear "attn_v"      [n_embd -> n_head_kv * head_dim_v];
            wo:        linear "attn_output" [n_head * head_dim_v -> n_embd];
            ffn_norm:  vector "ffn_norm"    [n_embd];
            if has_experts {
                router:      linear  "ffn_gate_inp"     [n_embd -> n_expert];
                probs_bias?: raw     "exp_probs_b.bias" [n_expert];
                gate_exps?:  experts "ffn_gate_exps"    [n_embd -> n_ff_exp; n_expert];
                up_exps:     experts "ffn_up_exps"      [n_embd -> n_ff_exp; n_expert];
                down_exps:   experts "ffn_down_exps"    [n_ff_exp -> n_embd; n_expert];
            } else {
                gate: linear "ffn_gate" [n_embd -> n_ff];
                up:   linear "ffn_up"   [n_embd -> n_ff];
                down: linear "ffn_down" [n_ff -> n_embd];
            }
            if has_shared {
                gate_shexp: linear "ffn_gate_shexp" [n_embd -> n_ff_shexp];
                up_shexp:   linear "ffn_up_shexp"   [n_embd -> n_ff_shexp];
                down_shexp: linear "ffn_down_shexp" [n_ff_shexp -> n_embd];
            }
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm, eps);
            let q = rope(heads(wq(h), n_head));
            let k = rope(heads(wk(h), n_head_kv));
            let v = heads(wv(h), n_head_kv);
            x += wo(attention(q, k, v));
            let h = rms_norm(x, ffn_norm, eps);
            if has_experts {
                let ffn = moe(h, router = router(h), gate = gate_exps, up = up_exps, down = down_exps, act = silu,
                              gating = softmax, n_used = n_expert_used, norm_weights = true,
                              selection_bias = probs_bias);
                if has_shared {
                    ffn += down_shexp(silu(gate_shexp(h)) * up_shexp(h));
                }
                x += ffn;
            } else {
                x += down(silu(gate(h)) * up(h));
            }
        }
        output(rms_norm(x, output_norm, eps))
    }

    test {
        n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, n_ff_exp: 384,
        moe_step: 1
    }
}
