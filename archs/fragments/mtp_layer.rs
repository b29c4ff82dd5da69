//! Additional tensors of a multi-token prediction layer (MTP, DeepSeek-V3, arXiv 2412.19437, section 2.2).
//! The normalized embedding of a token and the normalized hidden state of the preceding token are projected
//! to the layer's input. Embeddings, final norm, and output projection default to those of the main model.

fragment! {
    tensors {
        if is_mtp {
            eh_proj: linear "nextn.eh_proj" [2 * n_embd -> n_embd];
            enorm, hnorm: vector "nextn.enorm", "nextn.hnorm" [n_embd];
            mtp_embd?:   embed  "nextn.embed_tokens"     [n_embd, n_vocab];
            mtp_norm?:   vector "nextn.shared_head_norm" [n_embd];
            mtp_output?: linear "nextn.shared_head_head" [n_embd -> n_vocab];
        }
    }

    checkpoint {
        mtp {
            eh_proj <- ".eh_proj";
            enorm <- ".enorm";
            hnorm <- ".hnorm";
            mtp_embd <- ".embed_tokens";
            mtp_norm <- ".shared_head.norm";
            mtp_output <- ".shared_head.head";
        }
    }

    fn mtp_input() {
        let e = if has(mtp_embd) { mtp_embd[tokens] } else { token_embd[tokens] };
        eh_proj(concat(rms_norm(e, enorm), rms_norm(hidden, hnorm)))
    }

    fn mtp_logits(x: [n_embd, T]) {
        let h = if has(mtp_norm) { rms_norm(x, mtp_norm) } else { rms_norm(x, output_norm) };
        if has(mtp_output) { mtp_output(h) } else { output(h) }
    }
}
