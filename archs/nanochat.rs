//! NanoChat: RMS norms without weights, also on each query and key head after a rotation in the opposite
//! direction, and a squared ReLU.

arch_macros::arch! {
    name: "nanochat";
    rope: neox;

    hparams {
        // A cap of 0 disables it.
        logit_cap: f32 = "final_logit_softcapping";
    }

    tensors {
        token_embd: embed [n_embd, n_vocab];
        output: linear [n_embd -> n_vocab] or token_embd;

        layer {
            use self_attention, plain_ffn;
        }
    }

    fn queries(x: [n_embd, T]) { rms_norm(rope(heads(wq(x), n_head), inverse = true)) }

    fn keys(x: [n_embd, T]) { rms_norm(rope(heads(wk(x), n_head_kv), inverse = true)) }

    graph {
        let x = rms_norm(token_embd[tokens]);
        for layer {
            x += attend(rms_norm(x), rotated = false);
            x += ffn(rms_norm(x), act = relu_sqr);
        }
        let logits = output(rms_norm(x));
        if logit_cap > 0.0 { softcap(logits, logit_cap) } else { logits }
    }

    test { n_embd: 128, n_head: 4, n_head_kv: 2, n_layer: 2, n_ff: 192, n_vocab: 128, logit_cap: 15.0 }
}
