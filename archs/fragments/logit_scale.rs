//! Factor for the logits. If the file has none, `value` applies; without this option, the key is required. 0
//! disables the scaling.

fragment! {
    options(value?);

    hparams {
        logit_scale: f32 = "logit_scale" or value;
    }

    fn scale_logits(logits: [n_vocab, T]) {
        if logit_scale != 0.0 { logits * logit_scale } else { logits }
    }
}
