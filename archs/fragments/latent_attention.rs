//! Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) with the projections of keys and values split by head: the cache
//! holds one compressed vector per token, beside it what of a key is rotated, or would be.

fragment! {
    hparams {
        q_rank: usize = "attention.q_lora_rank" or 0;
        kv_rank: usize = "attention.kv_lora_rank";
        key_length_mla: usize = "attention.key_length_mla";
        value_length_mla: usize = "attention.value_length_mla";
        // Older files, whose cache is one of heads, give their sizes alone.
        let d_key = if key_length_mla > 0 { key_length_mla } else { head_dim };
        let d_value = if value_length_mla > 0 { value_length_mla } else { head_dim_v };
        check d_key > n_rot, "attention.key_length_mla is larger than rope.dimension_count";
        let n_nope = d_key - n_rot;
    }

    tensors {
        if q_rank > 0 {
            q_a:      linear "attn_q_a"      [n_embd -> q_rank];
            q_a_norm: vector "attn_q_a_norm" [q_rank];
            q_b:      linear "attn_q_b"      [q_rank -> n_head * d_key];
        } else {
            q_whole: linear "attn_q" [n_embd -> n_head * d_key];
        }
        kv_a:      linear   "attn_kv_a_mqa"  [n_embd -> kv_rank + n_rot];
        kv_a_norm: vector   "attn_kv_a_norm" [kv_rank];
        // Older files have the two in one, for keys and values in the cache.
        kv_b?: linear "attn_kv_b" [kv_rank -> n_head * (n_nope + d_value)];
        if !has(kv_b) {
            k_b: per_head "attn_k_b" [n_nope -> kv_rank; n_head];
            v_b: per_head "attn_v_b" [kv_rank -> d_value; n_head];
        }
        wo:        linear   "attn_output"    [n_head * d_value -> n_embd];
    }

    fn queries(x) {
        heads(if q_rank > 0 { q_b(rms_norm(q_a(x), q_a_norm, eps)) } else { q_whole(x) }, n_head)
    }

    // What heads find, `[d_value, n_head, T]`, by the parts of queries and keys that are not rotated and those that may be.
    fn found(q, q_rotated, latent, k_rotated) {
        if has(kv_b) {
            let kv = heads(kv_b(latent), n_head);
            let k = concat(kv[..n_nope], repeat_heads(k_rotated, n_head));
            heads(attention(concat(q, q_rotated), k, kv[n_nope..], scale = 1.0 / sqrt(d_key)), n_head)
        } else {
            let q = concat(k_b(q), q_rotated);
            let k = concat(heads(latent, 1), k_rotated);
            v_b(heads(attention(q, k, v_in_k = kv_rank, scale = 1.0 / sqrt(d_key)), n_head))
        }
    }

    fn attend_latent(x) {
        let q = queries(x);
        let kv = kv_a(x);
        merge(found(q[..n_nope], q[n_nope..], rms_norm(kv[..kv_rank], kv_a_norm, eps), heads(kv[kv_rank..], 1)))
    }

    fn attend_latent_rotated(x) {
        let q = queries(x);
        let kv = kv_a(x);
        let latent = rms_norm(kv[..kv_rank], kv_a_norm, eps);
        found(q[..n_nope], rope(q[n_nope..]), latent, rope(heads(kv[kv_rank..], 1)))
    }
}
