//! OPT and Galactica: learned positions, biases in all projections, and ReLU or GELU. OPT 350M normalizes after
//! each block instead of before, and has no final norm. It projects token embeddings of their own width to and
//! from the width of the model.

arch_macros::arch! {
    name: "opt";
    rope: none;

    hparams {
        n_embd_token: usize = "token_embedding_length" or n_embd;
        let projected = n_embd_token != n_embd;
        activation: string = "hidden_activation" or "relu";
        check activation == "relu" || activation == "gelu", "hidden_activation must be `relu` or `gelu`";
    }

    tensors {
        token_embd: embed [n_embd_token, n_vocab];
        // The first two rows are for padding.
        position_embd: embed [n_embd, n_ctx_train + 2];
        if projected {
            embd_in:  linear "token_embd_in"  [n_embd_token -> n_embd];
            embd_out: linear "token_embd_out" [n_embd -> n_embd_token];
        }
        output_norm?: norm [n_embd];
        output: linear [n_embd_token -> n_vocab] or token_embd;

        layer {
            attn_norm, ffn_norm: norm [n_embd];
            use self_attention;
            use plain_ffn;
        }
    }

    fn activated_ffn(x: [n_embd, T]) {
        if activation == "gelu" { ffn(x, act = gelu_erf) } else { ffn(x, act = relu) }
    }

    graph {
        let embedded = token_embd[tokens];
        let x = if projected { embd_in(embedded) } else { embedded[..n_embd] };
        x += position_embd[positions + 2];
        for layer {
            if has(output_norm) {
                x += attend(layer_norm(x, attn_norm), rotated = false);
                x += activated_ffn(layer_norm(x, ffn_norm));
            } else {
                x = layer_norm(x + attend(x, rotated = false), attn_norm);
                x = layer_norm(x + activated_ffn(x), ffn_norm);
            }
        }
        if has(output_norm) {
            x = layer_norm(x, output_norm);
        }
        output(if projected { embd_out(x) } else { x[..n_embd_token] })
    }

    test { n_embd: 128, n_head: 4, n_head_kv: 4, n_layer: 2, n_ff: 192, n_vocab: 128, n_embd_token: 64 }
}
