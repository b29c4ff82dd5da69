//! T5 and Flan-T5: an encoder, a decoder that attends to it, and biases by relative position.

name: "t5";
rope: none;

hparams {
    eps: f32 = "attention.layer_norm_rms_epsilon";
    n_bucket: usize = "attention.relative_buckets_count";
    n_layer_dec: usize = "decoder_block_count" or n_layer;
}

tensors {
    token_embd: embed  "token_embd"      [n_embd, n_vocab];
    enc_norm:   vector "enc.output_norm" [n_embd];
    dec_norm:   vector "dec.output_norm" [n_embd];
    output:     linear "output"          [n_embd -> n_vocab] or token_embd;

    layer enc "enc.blk" n_layer {
        attn_norm:   vector "attn_norm"  [n_embd];
        attn_rel_b?: vector "attn_rel_b" [n_head, n_bucket];
        wq:          linear "attn_q"     [n_embd -> n_head * head_dim];
        wk:          linear "attn_k"     [n_embd -> n_head * head_dim];
        wv:          linear "attn_v"     [n_embd -> n_head * head_dim_v];
        wo:          linear "attn_o"     [n_head * head_dim_v -> n_embd];
        ffn_norm:    vector "ffn_norm"   [n_embd];
        gate?:       linear "ffn_gate"   [n_embd -> n_ff];
        up:          linear "ffn_up"     [n_embd -> n_ff];
        down:        linear "ffn_down"   [n_ff -> n_embd];
    }

    layer dec "dec.blk" n_layer_dec {
        attn_norm:   vector "attn_norm"       [n_embd];
        attn_rel_b?: vector "attn_rel_b"      [n_head, n_bucket];
        wq:          linear "attn_q"          [n_embd -> n_head * head_dim];
        wk:          linear "attn_k"          [n_embd -> n_head * head_dim];
        wv:          linear "attn_v"          [n_embd -> n_head * head_dim_v];
        wo:          linear "attn_o"          [n_head * head_dim_v -> n_embd];
        cross_norm:  vector "cross_attn_norm" [n_embd];
        ignore "cross_attn_rel_b";
        cross_wq:    linear "cross_attn_q"    [n_embd -> n_head * head_dim];
        cross_wk:    linear "cross_attn_k"    [n_embd -> n_head * head_dim];
        cross_wv:    linear "cross_attn_v"    [n_embd -> n_head * head_dim_v];
        cross_wo:    linear "cross_attn_o"    [n_head * head_dim_v -> n_embd];
        ffn_norm:    vector "ffn_norm"        [n_embd];
        gate?:       linear "ffn_gate"        [n_embd -> n_ff];
        up:          linear "ffn_up"          [n_embd -> n_ff];
        down:        linear "ffn_down"        [n_ff -> n_embd];
    }
}

graph encoder {
    let x = token_embd[tokens];
    for enc {
        let h = rms_norm(x, attn_norm, eps);
        let q = heads(wq(h), n_head);
        let k = heads(wk(h), n_head);
        x += wo(attention(q, k, heads(wv(h), n_head), scale = 1.0, causal = false, buckets = attn_rel_b));
        let h = rms_norm(x, ffn_norm, eps);
        x += if has(gate) { down(gelu(gate(h)) * up(h)) } else { down(relu(up(h))) };
    }
    rms_norm(x, enc_norm, eps)
}

graph {
    let x = token_embd[tokens];
    for dec {
        let h = rms_norm(x, attn_norm, eps);
        let q = heads(wq(h), n_head);
        x += wo(attention(q, heads(wk(h), n_head), heads(wv(h), n_head), scale = 1.0, buckets = attn_rel_b));
        let h = rms_norm(x, cross_norm, eps);
        let q = heads(cross_wq(h), n_head);
        let k = heads(cross_wk(encoder), n_head);
        x += cross_wo(cross_attention(q, k, heads(cross_wv(encoder), n_head), scale = 1.0));
        let h = rms_norm(x, ffn_norm, eps);
        x += if has(gate) { down(gelu(gate(h)) * up(h)) } else { down(relu(up(h))) };
    }
    output(rms_norm(x, dec_norm, eps))
}

test { n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_bucket: 8 }
