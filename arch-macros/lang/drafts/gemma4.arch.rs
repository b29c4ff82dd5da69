//! Gemma 4: Gemma 3 with an embedding per layer, other head sizes in windowed layers, and layers that read earlier keys.

name: "gemma4";
rope: neox;

hparams {
    eps: f32 = "attention.layer_norm_rms_epsilon";
    n_swa: usize = "attention.sliding_window";
    is_swa: pattern = "attention.sliding_window_pattern";
    n_pl: usize = "embedding_length_per_layer_input" or 0;
    n_shared_kv: usize = "attention.shared_kv_layers" or 0;
    head_dim_swa: usize = "attention.key_length_swa" or head_dim;
    rot_swa: usize = "rope.dimension_count_swa" or n_rot;
    rope_base_swa: f32 = "rope.freq_base_swa" or 10000.0;
    logit_cap: f32 = "final_logit_softcapping" or 0.0;
    let d = if is_swa { head_dim_swa } else { head_dim };
    let rot = if is_swa { rot_swa } else { n_rot };
    let own_kv = il < n_layer - n_shared_kv;
}

tensors {
    token_embd:  embed  "token_embd"  [n_embd, n_vocab];
    output_norm: vector "output_norm" [n_embd];
    output:      linear "output"      [n_embd -> n_vocab] or token_embd;
    rope_freqs?: vector "rope_freqs"  [n_rot / 2];
    pl_embd:     embed  "per_layer_token_embd" [n_pl * n_layer, n_vocab];
    pl_proj:     linear "per_layer_model_proj" [n_embd -> n_pl * n_layer];
    pl_norm:     vector "per_layer_proj_norm"  [n_pl];

    layer {
        attn_norm:      vector "attn_norm"           [n_embd];
        wq:             linear "attn_q"              [n_embd -> n_head * d];
        q_norm:         vector "attn_q_norm"         [d];
        if own_kv {
            wk:         linear "attn_k"              [n_embd -> n_head_kv * d];
            wv:         linear "attn_v"              [n_embd -> n_head_kv * d];
            k_norm:     vector "attn_k_norm"         [d];
        }
        wo:             linear "attn_output"         [n_head * d -> n_embd];
        attn_post_norm: vector "post_attention_norm" [n_embd];
        ffn_norm:       vector "ffn_norm"            [n_embd];
        gate:           linear "ffn_gate"            [n_embd -> n_ff];
        up:             linear "ffn_up"              [n_embd -> n_ff];
        down:           linear "ffn_down"            [n_ff -> n_embd];
        ffn_post_norm:  vector "post_ffw_norm"       [n_embd];
        pl_gate:        linear "inp_gate"            [n_embd -> n_pl];
        pl_out:         linear "proj"                [n_pl -> n_embd];
        pl_post_norm:   vector "post_norm"           [n_embd];
        out_scale?:     vector "layer_output_scale"  [1];
    }
}

graph {
    let x = token_embd[tokens] * sqrt(n_embd);
    let own = pl_embd[tokens] * sqrt(n_pl);
    let projected = rms_norm(heads(pl_proj(x) / sqrt(n_embd), n_layer), pl_norm, eps);
    let per_layer = (merge(projected) + own) / sqrt(2);
    for layer {
        let h = rms_norm(x, attn_norm, eps);
        let q = rms_norm(heads(wq(h), n_head), q_norm, eps);
        let q = if is_swa { rope(q, base = rope_base_swa, dims = rot) } else { rope(q, dims = rot, factors = rope_freqs) };
        let attn = if own_kv {
            let k = rms_norm(heads(wk(h), n_head_kv), k_norm, eps);
            let k = if is_swa { rope(k, base = rope_base_swa, dims = rot) } else { rope(k, dims = rot, factors = rope_freqs) };
            let v = rms_norm(heads(wv(h), n_head_kv), eps);
            attention(q, k, v, scale = 1.0, window = standard(n_swa, is_swa))
        } else {
            attention_over(q, layer = n_layer - n_shared_kv - 1, scale = 1.0, window = standard(n_swa, is_swa))
        };
        x += rms_norm(wo(attn), attn_post_norm, eps);
        let h = rms_norm(x, ffn_norm, eps);
        x += rms_norm(down(gelu(gate(h)) * up(h)), ffn_post_norm, eps);
        let part = per_layer[il * n_pl..(il + 1) * n_pl];
        x += rms_norm(pl_out(gelu(pl_gate(x)) * part), pl_post_norm, eps);
        if has(out_scale) {
            x *= out_scale;
        }
    }
    let logits = output(rms_norm(x, output_norm, eps));
    if logit_cap > 0.0 { softcap(logits, logit_cap) } else { logits }
}

test { n_embd: 128, n_head: 2, n_layer: 5, n_ff: 192, n_vocab: 128, n_swa: 32, n_pl: 64 }
