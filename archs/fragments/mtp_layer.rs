//! What a layer of multi-token prediction (MTP, DeepSeek-V3, arXiv 2412.19437, section 2.2) has beside an ordinary one: the embedding of a
//! token and the model's hidden row before it, each normed, are projected to the residual stream that the layer continues. What files may lack
//! is the model's own: embeddings, the norm behind the layer, and the output matrix.

fragment! {
    needs(eps: f32);

    tensors {
        if is_mtp {
            eh_proj: linear "nextn.eh_proj" [2 * n_embd -> n_embd];
            enorm, hnorm: vector "nextn.enorm", "nextn.hnorm" [n_embd];
            mtp_embd?:   embed  "nextn.embed_tokens"     [n_embd, n_vocab];
            mtp_norm?:   vector "nextn.shared_head_norm" [n_embd];
            mtp_output?: linear "nextn.shared_head_head" [n_embd -> n_vocab];
        }
    }

    fn mtp_input() {
        let e = if has(mtp_embd) { mtp_embd[tokens] } else { token_embd[tokens] };
        eh_proj(concat(rms_norm(e, enorm, eps), rms_norm(hidden, hnorm, eps)))
    }

    fn mtp_logits(x) {
        let h = if has(mtp_norm) { rms_norm(x, mtp_norm, eps) } else { rms_norm(x, output_norm, eps) };
        if has(mtp_output) { mtp_output(h) } else { output(h) }
    }
}
