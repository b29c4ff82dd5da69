//! Adds the projected probabilities of letters (CTC) to the columns in the middle of an encoder.

fragment! {
    hparams {
        n_ctc: usize = "ctc_length" or file_rows("a.enc_ctc_out.weight");
    }

    tensors {
        ctc_out: linear "a.enc_ctc_out"     [n_embd -> n_ctc];
        ctc_mid: linear "a.enc_ctc_out_mid" [n_ctc -> n_embd];
    }

    fn with_letters(x: [n_embd, _]) {
        x + ctc_mid(softmax(ctc_out(x)))
    }
}
