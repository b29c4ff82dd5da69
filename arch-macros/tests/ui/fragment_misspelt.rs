//! A misspelled name in a fragment that is used twice gives a single error, located in the fragment.

mod first {
    arch_macros::arch! {
        name: "first";
        rope: none;

        hparams {
            eps: f32 = "attention.layer_norm_rms_epsilon";
        }

        tensors {
            token_embd: embed "token_embd" [n_embd, n_vocab];
            output: linear "output" [n_embd -> n_vocab] or token_embd;
            layer {
                ffn_norm: vector "ffn_norm" [n_embd];
                use misspelt_ffn;
            }
        }

        graph {
            let x = token_embd[tokens];
            for layer {
                let h = rms_norm(x, ffn_norm, eps);
                x += ffn(h);
            }
            output(x)
        }

        test { n_embd: 64, n_head: 2, n_layer: 2, n_ff: 96, n_vocab: 32 }
    }
}

mod second {
    arch_macros::arch! {
        name: "second";
        rope: none;

        hparams {
            eps: f32 = "attention.layer_norm_rms_epsilon";
        }

        tensors {
            token_embd: embed "token_embd" [n_embd, n_vocab];
            output: linear "output" [n_embd -> n_vocab] or token_embd;
            layer {
                ffn_norm: vector "ffn_norm" [n_embd];
                use misspelt_ffn;
            }
        }

        graph {
            let x = token_embd[tokens];
            for layer {
                let h = rms_norm(x, ffn_norm, eps);
                x += ffn(h);
            }
            output(x)
        }

        test { n_embd: 64, n_head: 2, n_layer: 2, n_ff: 96, n_vocab: 32 }
    }
}

fn main() {}
