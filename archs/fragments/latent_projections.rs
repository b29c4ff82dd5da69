//! The projections of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) where a file splits those of keys and values by head
//! and queries are of low rank. Sizes are the declaration's: `q_rank`, `kv_rank`, `dk`, `dv` and `n_nope`.

fragment! {
    tensors {
        q_a:       linear   "attn_q_a"       [n_embd -> q_rank];
        q_a_norm:  vector   "attn_q_a_norm"  [q_rank];
        q_b:       linear   "attn_q_b"       [q_rank -> n_head * dk];
        kv_a:      linear   "attn_kv_a_mqa"  [n_embd -> kv_rank + n_rot];
        kv_a_norm: vector   "attn_kv_a_norm" [kv_rank];
        k_b:       per_head "attn_k_b"       [n_nope -> kv_rank; n_head];
        v_b:       per_head "attn_v_b"       [kv_rank -> dv; n_head];
        wo:        linear   "attn_output"    [n_head * dv -> n_embd];
    }

    fn compressed_queries(x) {
        rms_norm(q_a(x), q_a_norm, eps)
    }

    // In the space of the latent vector, with the rotated part behind.
    fn latent_queries(compressed, base?) {
        let q = rope(heads(q_b(compressed), n_head), offset = n_nope, base = base);
        concat(k_b(q[..n_nope]), q[n_nope..])
    }

    fn latent_keys(x, base?) {
        let kv = kv_a(x);
        concat(heads(rms_norm(kv[..kv_rank], kv_a_norm, eps), 1), rope(rotating(heads(kv[kv_rank..], 1)), base = base))
    }

    // The part of a key that is to rotate.
    fn rotating(k) {
        k
    }
}
