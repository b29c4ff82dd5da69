//! Multi-head latent attention (MLA, DeepSeek-V2, arXiv 2405.04434): one compressed vector per token yields the keys
//! and values of all heads. A separate part of the key is rotated. If a file has split projections (`attn_k_b`,
//! `attn_v_b`), they are absorbed: the cache stores the compressed vector, and queries are projected into its space.
//! With a fused projection (`attn_kv_b`), the cache stores the keys and values of all heads.

fragment! {
    options(low_rank_queries = q_rank > 0);

    hparams {
        q_rank: usize = "attention.q_lora_rank" or 0;
        kv_rank: usize = "attention.kv_lora_rank";
        key_length_mla: usize = "attention.key_length_mla" or 0;
        value_length_mla: usize = "attention.value_length_mla" or 0;
        check (key_length_mla == 0) == (value_length_mla == 0),
              "attention.key_length_mla and attention.value_length_mla must be set together";
        // Files without these keys store the head sizes under the keys of ordinary attention.
        let mla_head_dim_k = if key_length_mla > 0 { key_length_mla } else { head_dim };
        let mla_head_dim_v = if value_length_mla > 0 { value_length_mla } else { head_dim_v };
        check mla_head_dim_k >= n_rot, "attention.key_length_mla, or attention.key_length, must be at least rope.dimension_count";
        // Number of leading elements of a head without rotary positions.
        let n_nope = mla_head_dim_k - n_rot;
    }

    tensors {
        if low_rank_queries {
            q_a:      linear "attn_q_a"      [n_embd -> q_rank];
            q_a_norm: vector "attn_q_a_norm" [q_rank];
            q_b:      linear "attn_q_b"      [q_rank -> n_head * mla_head_dim_k];
        } else {
            q_proj: linear "attn_q" [n_embd -> n_head * mla_head_dim_k];
        }
        kv_a:      linear "attn_kv_a_mqa"  [n_embd -> kv_rank + n_rot];
        kv_a_norm: vector "attn_kv_a_norm" [kv_rank];
        kv_b?:     linear "attn_kv_b"      [kv_rank -> n_head * (n_nope + mla_head_dim_v)];
        if !has(kv_b) {
            k_b: per_head "attn_k_b" [n_nope -> kv_rank; n_head];
            v_b: per_head "attn_v_b" [kv_rank -> mla_head_dim_v; n_head];
        }
        wo: linear "attn_output" [n_head * mla_head_dim_v -> n_embd];
    }

    checkpoint {
        q_a <- ".self_attn.q_a_proj";
        q_a_norm <- ".self_attn.q_a_layernorm";
        q_b <- ".self_attn.q_b_proj";
        q_proj <- ".self_attn.q_proj";
        kv_a <- ".self_attn.kv_a_proj_with_mqa";
        kv_a_norm <- ".self_attn.kv_a_layernorm";
        without kv_b "the projection is split into those of keys and values";
        k_b <- ".self_attn.kv_b_proj" heads n_head rows 0..key_length_mla - n_rot transpose;
        v_b <- ".self_attn.kv_b_proj" heads n_head rows key_length_mla - n_rot..key_length_mla - n_rot + value_length_mla;
        wo <- ".self_attn.o_proj";
    }

    fn attend_latent(x: [n_embd, T], ..) {
        wo(merge(attend_latent_heads(x, latent_queries(x), ..)))
    }

    fn compressed_queries(x: [n_embd, T]) {
        rms_norm(q_a(x), q_a_norm)
    }

    fn compressed_keys(c: [kv_rank, T]) {
        rms_norm(c, kv_a_norm)
    }

    fn latent_queries(x: [n_embd, T]) {
        heads(if low_rank_queries { q_b(compressed_queries(x)) } else { q_proj(x) }, n_head)
    }

    // Returns the results per head, `[mla_head_dim_v, n_head, T]`.
    fn attend_latent_heads(x: [n_embd, T], q: [mla_head_dim_k, n_head, T], rotated = true, scale = 1.0 / sqrt(mla_head_dim_k), ..) {
        if rotated {
            q = rope(q, offset = n_nope, ..);
        }
        let kv = kv_a(x);
        let c_kv = compressed_keys(kv[..kv_rank]);
        if has(kv_b) {
            let kv_heads = heads(kv_b(c_kv), n_head);
            let k = if n_rot > 0 {
                let k_rot = repeat_heads(rotated_keys(kv, rotated = rotated, ..), n_head);
                if n_nope > 0 { concat(kv_heads[..n_nope], k_rot) } else { k_rot[..mla_head_dim_k] }
            } else {
                kv_heads[..mla_head_dim_k]
            };
            heads(attention(q, k, kv_heads[n_nope..], scale = scale, ..), n_head)
        } else {
            let absorbed = k_b(q[..n_nope]);
            let q = if n_rot > 0 { concat(absorbed, q[n_nope..]) } else { absorbed[..kv_rank + n_rot] };
            let k = heads(c_kv, 1);
            let k = if n_rot > 0 { concat(k, rotated_keys(kv, rotated = rotated, ..)) } else { k[..kv_rank + n_rot] };
            v_b(heads(attention(q, k, v_in_k = kv_rank, scale = scale, ..), n_head))
        }
    }

    fn rotated_keys(kv: [kv_rank + n_rot, T], rotated = true, ..) {
        let k = norm_k_rot(heads(kv[kv_rank..], 1));
        if rotated { rope(k, ..) } else { k }
    }

    fn norm_k_rot(k: [n_rot, 1, T]) {
        k
    }
}
