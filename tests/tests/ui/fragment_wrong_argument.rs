//! A function of a fragment that is given heads where it takes the residual stream.

arch_macros::arch! {
    name: "tiny";
    rope: none;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
    }

    tensors {
        token_embd: embed "token_embd" [n_embd, n_vocab];
        output: linear "output" [n_embd -> n_vocab] or token_embd;
        layer {
            ffn_norm: vector "ffn_norm" [n_embd];
            use plain_ffn;
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, ffn_norm, eps);
            x += ffn(h[..head_dim]);
        }
        output(x)
    }

    test { n_embd: 64, n_head: 2, n_layer: 2, n_ff: 96, n_vocab: 32 }
}

fn main() {}
