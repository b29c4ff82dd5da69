//! Gemma 3n: four states per token of which one goes through the layer and corrects the others (AltUp), a low-rank bypass beside
//! attention (Laurel), sparse gates in the first layers, an embedding of each token for each layer, and last layers that attend over
//! keys of earlier ones.

arch_macros::arch! {
    name: "gemma3n";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
        n_swa: usize = "attention.sliding_window";
        is_swa: pattern = "attention.sliding_window_pattern" or 5;
        rope_base_swa: f32 = "rope.freq_base_swa" or 10000.0;
        // What files do not say: the published models agree in it.
        let n_state = 4;
        let n_pl = 256;
        let rank = 64;
        let is_sparse = il < 10;
        let n_own = min(n_layer, 20);
        let base = if is_swa { rope_base_swa } else { rope_freq_base };
        let scale = if is_swa { 1.0 } else { rope_freq_scale };
        let own_kv = il < n_own;
        // The last layer before the sharing ones that has the same kind of window.
        let source = n_own - (if is_swa { 2 } else { 1 });
        check n_swa > 0, "attention.sliding_window is 0";
    }

    tensors {
        token_embd:  embed   "token_embd"           [n_embd, n_vocab];
        output_norm: vector  "output_norm"          [n_embd];
        output:      linear  "output"               [n_embd -> n_vocab] or token_embd;
        altup_proj:  experts "altup_proj"           [n_embd -> n_embd; n_state - 1];
        altup_out:   experts "altup_unembd_proj"    [n_embd -> n_embd; n_state - 1];
        pl_embd:     embed   "per_layer_token_embd" [n_pl * n_layer, n_vocab];
        pl_proj:     linear  "per_layer_model_proj" [n_embd -> n_pl * n_layer];
        pl_norm:     vector  "per_layer_proj_norm"  [n_pl];

        layer {
            attn_norm: vector "attn_norm"   [n_embd];
            wq:        linear "attn_q"      [n_embd -> n_head * head_dim];
            q_norm:    vector "attn_q_norm" [head_dim];
            if own_kv {
                wk:     linear "attn_k"      [n_embd -> n_head_kv * head_dim];
                wv:     linear "attn_v"      [n_embd -> n_head_kv * head_dim_v];
                k_norm: vector "attn_k_norm" [head_dim];
            } else {
                ignore "attn_k", "attn_v", "attn_k_norm";
            }
            wo:             linear "attn_output"         [n_head * head_dim_v -> n_embd];
            attn_post_norm: vector "post_attention_norm" [n_embd];
            ffn_norm:       vector "ffn_norm"            [n_embd];
            gate:           linear "ffn_gate"            [n_embd -> n_ff];
            up:             linear "ffn_up"              [n_embd -> n_ff];
            down:           linear "ffn_down"            [n_ff -> n_embd];
            ffn_post_norm:  vector "post_ffw_norm"       [n_embd];
            pl_gate:        linear "inp_gate"            [n_embd -> n_pl];
            pl_out:         linear "proj"                [n_pl -> n_embd];
            pl_post_norm:   vector "post_norm"           [n_embd];
            correct_coef:   linear "altup_correct_coef"  [n_state -> n_state];
            correct_scale:  vector "altup_correct_scale" [n_embd];
            predict_coef:   linear "altup_predict_coef"  [n_state -> n_state * n_state];
            altup_router:   linear "altup_router"        [n_embd -> n_state];
            router_norm:    vector "altup_router_norm"   [n_embd];
            laurel_l:       linear "laurel_l"            [n_embd -> rank];
            laurel_r:       linear "laurel_r"            [rank -> n_embd];
            laurel_norm:    vector "laurel_post_norm"    [n_embd];
        }
    }

    fn magnitude(x) {
        sqrt(sum_rows(sqr(x)))
    }

    fn modalities(x) {
        tanh(altup_router(rms_norm(x, router_norm, eps) / n_embd))
    }

    // What exceeds the mean by 1.645 standard deviations: one value in twenty of a normal distribution.
    fn outliers(x) {
        let centered = x - sum_rows(x) / n_ff;
        let deviation = sqrt(sum_rows(sqr(centered)) / (n_ff - 1));
        relu(centered - deviation * 1.6448536)
    }

    graph {
        let x = token_embd[tokens] * sqrt(n_embd);
        let projected = rms_norm(heads(pl_proj(x) / sqrt(n_embd), n_layer), pl_norm, eps);
        let per_layer = (merge(projected) + pl_embd[tokens] * sqrt(n_pl)) / sqrt(2);
        let first = heads(x, 1);
        let others = rust!([n_embd, n_state - 1, T] => b.each_matrix(m.w.altup_proj, first));
        let states = heads(concat(x, merge(others * magnitude(first) / magnitude(others))), n_state);
        for layer {
            let active = merge(states)[..n_embd];
            let coefs = heads(predict_coef(modalities(active)), n_state);
            let predicted = states;
            for j in 0..n_state {
                let state = merge(states)[j * n_embd..(j + 1) * n_embd];
                predicted += repeat_heads(heads(state, 1), n_state) * coefs[j..j + 1];
            }
            let active = merge(predicted)[..n_embd];
            let h = rms_norm(active, attn_norm, eps);
            let laurel = h + rms_norm(laurel_r(laurel_l(h)), laurel_norm, eps);
            // Without keys of its own a layer has no use for a bias of queries either.
            let query = if own_kv { wq(h) } else { rust!([n_head * head_dim, T] => b.linear(::engine::arch::Linear { bias: None, ..l.wq }, h)) };
            let q = rope(rms_norm(heads(query, n_head), q_norm, eps), base = base, scale = scale);
            let attn = if own_kv {
                let k = rope(rms_norm(heads(wk(h), n_head_kv), k_norm, eps), base = base, scale = scale);
                let v = rms_norm(heads(wv(h), n_head_kv), eps);
                attention(q, k, v, scale = 1.0, window = standard(n_swa, is_swa))
            } else {
                attention_over(q, source, head_dim_v, scale = 1.0, window = standard(n_swa, is_swa))
            };
            let x = (active + rms_norm(wo(attn), attn_post_norm, eps) + laurel) / sqrt(2);
            let h = rms_norm(x, ffn_norm, eps);
            let g = if is_sparse { outliers(gate(h)) } else { gate(h) };
            let x = x + rms_norm(down(gelu(g) * up(h)), ffn_post_norm, eps);
            let coefs = heads(correct_coef(modalities(x)) + 1.0, n_state);
            let corrected = predicted + repeat_heads(heads(x - active, 1), n_state) * coefs;
            let active = merge(corrected)[..n_embd];
            let part = per_layer[il * n_pl..(il + 1) * n_pl];
            let more = rms_norm(pl_out(gelu(pl_gate(active * correct_scale)) * part), pl_post_norm, eps);
            let others = merge(corrected)[n_embd..] + merge(repeat_heads(heads(more, 1), n_state - 1));
            states = heads(concat(active, others), n_state);
        }
        let x = merge(states)[..n_embd];
        let columns = heads(merge(states)[n_embd..], n_state - 1);
        let others = rust!([n_embd, n_state - 1, T] => b.each_matrix(m.w.altup_out, columns));
        let others = others * magnitude(heads(x, 1)) / magnitude(others);
        for i in 0..n_state - 1 {
            x += merge(others)[i * n_embd..(i + 1) * n_embd];
        }
        softcap(output(rms_norm(x / n_state, output_norm, eps)), 30.0)
    }

    test { n_embd: 64, n_head: 1, n_layer: 22, n_ff: 96, n_vocab: 128, n_swa: 32 }
}
