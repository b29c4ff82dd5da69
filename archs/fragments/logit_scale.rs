//! A factor on logits: of a file that gives none, `value`, or without this option an error; 0 is none.

fragment! {
    options(value?);

    hparams {
        logit_scale: f32 = "logit_scale" or value;
    }

    fn scale_logits(logits) {
        if logit_scale != 0.0 { logits * logit_scale } else { logits }
    }
}
