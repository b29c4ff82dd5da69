//! Gemma 4: Gemma 3 with heads of another size in windowed layers, proportional rotary frequencies in full ones, an embedding of each
//! token for each layer, last layers that attend over keys of earlier ones, and experts beside the feed-forward network.

arch_macros::arch! {
    name: "gemma4";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        n_swa: usize = "attention.sliding_window";
        is_swa: [bool] = "attention.sliding_window_pattern";
        head_dim_swa: usize = "attention.key_length_swa";
        head_dim_v_swa: usize = "attention.value_length_swa";
        n_rot_swa: usize = "rope.dimension_count_swa" or n_rot;
        rope_base_swa: f32 = "rope.freq_base_swa" or 10000.0;
        n_shared: usize = "attention.shared_kv_layers" or 0;
        n_pl: usize = "embedding_length_per_layer_input";
        n_ff_exp: [usize] = "expert_feed_forward_length" or 0;
        logit_cap: f32 = "final_logit_softcapping" or 30.0;
        let d = if is_swa { head_dim_swa } else { head_dim };
        let rot = if is_swa { n_rot_swa } else { n_rot };
        let base = if is_swa { rope_base_swa } else { rope_freq_base };
        let scale = if is_swa { 1.0 } else { rope_freq_scale };
        let own_kv = il < n_layer - n_shared;
        // The last layer before the sharing ones that has the same kind of window.
        let source = n_layer - n_shared - (if is_swa { 2 } else { 1 });
        check n_swa > 0, "attention.sliding_window is 0";
        check head_dim == head_dim_v && head_dim_swa == head_dim_v_swa, "attention.key_length is attention.value_length, and attention.key_length_swa attention.value_length_swa";
    }

    tensors {
        token_embd:  embed  "token_embd"  [n_embd, n_vocab];
        output_norm: vector "output_norm" [n_embd];
        output:      linear "output"      [n_embd -> n_vocab] or token_embd;
        rope_freqs?: vector "rope_freqs"  [head_dim / 2];
        if n_pl > 0 {
            pl_embd: embed  "per_layer_token_embd" [n_pl * n_layer, n_vocab];
            pl_proj: linear "per_layer_model_proj" [n_embd -> n_pl * n_layer];
            pl_norm: vector "per_layer_proj_norm"  [n_pl];
        }

        layer {
            attn_norm: vector "attn_norm"   [n_embd];
            wq:        linear "attn_q"      [n_embd -> n_head * d];
            q_norm:    vector "attn_q_norm" [d];
            if own_kv {
                wk:     linear "attn_k"      [n_embd -> n_head_kv * d];
                wv?:    linear "attn_v"      [n_embd -> n_head_kv * d];
                k_norm: vector "attn_k_norm" [d];
            } else {
                ignore "attn_k", "attn_v", "attn_k_norm";
            }
            wo:             linear "attn_output"         [n_head * d -> n_embd];
            attn_post_norm: vector "post_attention_norm" [n_embd];
            ffn_norm:       vector "ffn_norm"            [n_embd];
            gate:           linear "ffn_gate"            [n_embd -> n_ff];
            up:             linear "ffn_up"              [n_embd -> n_ff];
            down:           linear "ffn_down"            [n_ff -> n_embd];
            ffn_post_norm:  vector "post_ffw_norm"       [n_embd];
            out_scale?:     vector "layer_output_scale"  [1];
            if n_expert > 0 {
                router_scale:   raw     "ffn_gate_inp.scale" [n_embd];
                router:         linear  "ffn_gate_inp"       [n_embd -> n_expert];
                mlp_post_norm:  vector  "post_ffw_norm_1"    [n_embd];
                exps_norm:      vector  "pre_ffw_norm_2"     [n_embd];
                exps_post_norm: vector  "post_ffw_norm_2"    [n_embd];
                gate_up_exps?:  experts "ffn_gate_up_exps"   [n_embd -> 2 * n_ff_exp; n_expert];
                gate_exps?:     experts "ffn_gate_exps"      [n_embd -> n_ff_exp; n_expert];
                up_exps?:       experts "ffn_up_exps"        [n_embd -> n_ff_exp; n_expert];
                down_exps:      experts "ffn_down_exps"      [n_ff_exp -> n_embd; n_expert];
            }
            if n_pl > 0 {
                pl_gate:      linear "inp_gate"  [n_embd -> n_pl];
                pl_out:       linear "proj"      [n_pl -> n_embd];
                pl_post_norm: vector "post_norm" [n_embd];
            }
        }
    }

    graph {
        let x = token_embd[tokens] * sqrt(n_embd);
        let per_layer = if n_pl > 0 {
            let projected = rms_norm(heads(pl_proj(x) / sqrt(n_embd), n_layer), pl_norm, eps);
            (merge(projected) + pl_embd[tokens] * sqrt(n_pl)) / sqrt(2)
        } else {
            rust!([n_pl * n_layer, T] => x) // not used
        };
        for layer {
            let h = rms_norm(x, attn_norm, eps);
            let q = rms_norm(heads(wq(h), n_head), q_norm, eps);
            let q = if is_swa { rope(q, base = base, scale = scale, dims = rot) } else { rope(q, factors = rope_freqs, dims = rot) };
            let attn = if own_kv {
                let key = wk(h);
                let k = rms_norm(heads(key, n_head_kv), k_norm, eps);
                let k = if is_swa { rope(k, base = base, scale = scale, dims = rot) } else { rope(k, factors = rope_freqs, dims = rot) };
                let v = if has(wv) { wv(h) } else { key };
                attention(q, k, rms_norm(heads(v, n_head_kv), eps), scale = 1.0, window = standard(n_swa, is_swa))
            } else {
                attention_over(q, source, d, scale = 1.0, window = standard(n_swa, is_swa))
            };
            x += rms_norm(wo(attn), attn_post_norm, eps);
            let h = rms_norm(x, ffn_norm, eps);
            let y = down(gelu(gate(h)) * up(h));
            if n_expert > 0 {
                let logits = router(rms_norm(x, eps) / sqrt(n_embd) * router_scale);
                let exps = moe(rms_norm(x, exps_norm, eps), router = logits, gate = gate_exps, up = up_exps,
                               gate_up = gate_up_exps, down = down_exps, act = gelu, gating = softmax,
                               n_used = n_expert_used, norm_weights = true);
                y = rms_norm(y, mlp_post_norm, eps) + rms_norm(exps, exps_post_norm, eps);
            }
            x += rms_norm(y, ffn_post_norm, eps);
            if n_pl > 0 {
                let part = per_layer[il * n_pl..(il + 1) * n_pl];
                x += rms_norm(pl_out(gelu(pl_gate(x)) * part), pl_post_norm, eps);
            }
            if has(out_scale) {
                x *= out_scale;
            }
        }
        let logits = output(rms_norm(x, output_norm, eps));
        if logit_cap > 0.0 { softcap(logits, logit_cap) } else { logits }
    }

    test { n_embd: 128, n_head: 2, n_layer: 5, n_ff: 192, n_vocab: 128, n_swa: 32, n_pl: 64, head_dim_swa: 64, head_dim_v_swa: 64 }
}
