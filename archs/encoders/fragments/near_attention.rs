//! Grouped-query attention to all patches, or to a window of patches, with blocks ordered by lines or by columns. In
//! layers with a window, a learned bias of each head is added to the scores of the first patch.

fragment! {
    needs(merge: usize);

    hparams {
        n_near: usize = "window_size";
        // 0 for lines, 1 for columns, and -1 for all patches.
        order: [f32] = "wa_pattern_mode";
        d_head: [usize] = "attention.head_length" or file_rows("v.blk.{}.attn_qkv.weight") / (n_head + 2 * n_head_kv);
        let n_q = n_head * d_head;
        let n_k = n_head_kv * d_head;
        check n_near > 0, "window_size must not be 0";
    }

    tensors {
        wqkv: linear "attn_qkv" [n_embd -> n_q + 2 * n_k];
        wo:   linear "attn_out" [n_q -> n_embd];
        if order >= 0.0 {
            first_bias: raw "attn_sinks" [n_head];
        }
    }

    fn attend(x: [n_embd, T]) {
        let qkv = wqkv(x);
        let q = rope_grid(heads(qkv[..n_q], n_head), 10000.0);
        let k = rope_grid(heads(qkv[n_q..n_q + n_k], n_head_kv), 10000.0);
        let v = heads(qkv[n_q + n_k..], n_head_kv);
        wo(if order < 0.0 {
            attention(q, k, v)
        } else if order > 0.0 {
            by_lines(near(by_columns(q, merge), by_columns(k, merge), by_columns(v, merge)), merge)
        } else {
            near(q, k, v)
        })
    }

    // Each query is extended by the bias, and each key by a value: 1 for the first key, and 0 for all other keys.
    fn near(q: [d_head, n_head, T], k: [d_head, n_head_kv, T], v: [d_head, n_head_kv, T]) {
        let zeros = merge(k)[..n_head_kv] * 0.0;
        let first = join_rows(mean_rows(sigmoid(zeros) * 2.0), drop_rows(zeros, 1));
        let bias = heads(merge(q)[..n_head] * 0.0 + first_bias, n_head);
        let q = concat(q * (1.0 / sqrt(d_head)), bias);
        attention(q, concat(k, heads(first, n_head_kv)), v, scale = 1.0, window = symmetric(2 * n_near, true))
    }
}
