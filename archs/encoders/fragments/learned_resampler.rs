//! Attention of learned queries to all patches, whose keys have sinusoidal positions by column and row (a resampler).

fragment! {
    hparams {
        // The key `projection_dim` is 0 in files.
        n_out: usize = "resampler.embedding_length" or file_rows("resampler.kv.weight");
        n_query: usize = "resampler.query_count" or file_rows("resampler.query");
        n_head_out: usize = "resampler.head_count" or n_out / 128;
        check n_head_out > 0 && n_out % n_head_out == 0, "the rows of a resampler must have a multiple of 128 values";
        check n_query != 96, "MiniCPM-V 2.5, which has 96 queries and other texts around tiles, is not supported";
    }

    tensors {
        kv:        linear "resampler.kv"       [n_embd -> n_out];
        query:     raw    "resampler.query"    [n_out, n_query];
        ln_q:      norm   "resampler.ln_q"     [n_out];
        ln_kv:     norm   "resampler.ln_kv"    [n_out];
        ln_post:   norm   "resampler.ln_post"  [n_out];
        query_q:   linear "resampler.attn.q"   [n_out -> n_out];
        query_k:   linear "resampler.attn.k"   [n_out -> n_out];
        query_v:   linear "resampler.attn.v"   [n_out -> n_out];
        query_out: linear "resampler.attn.out" [n_out -> n_out];
        proj:      linear "resampler.proj"     [n_out -> n_out];
        ignore "resampler.pos_embed_k";
    }

    fn resampled(x: [n_embd, T]) {
        let x = layer_norm(kv(x), ln_kv, 0.000001);
        let q = heads(query_q(layer_norm(query, ln_q, 0.000001)), n_head_out);
        let k = heads(query_k(x + grid_sinusoids(n_out)), n_head_out);
        let y = query_out(full_attention(q, k, heads(query_v(x), n_head_out)));
        proj(layer_norm(y, ln_post, 0.000001))
    }
}
