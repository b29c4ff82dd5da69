//! Soft cap for the logits; `cap` is the default. 0 disables the cap.

fragment! {
    options(cap);

    hparams {
        logit_cap: f32 = "final_logit_softcapping" or cap;
    }

    fn cap_logits(logits: [n_vocab, T]) {
        if logit_cap > 0.0 { softcap(logits, logit_cap) } else { logits }
    }
}
