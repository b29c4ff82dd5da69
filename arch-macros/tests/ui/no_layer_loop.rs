//! A graph without a layer loop.

arch_macros::arch! {
    name: "tiny";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
    }

    tensors {
        token_embd: embed "token_embd" [n_embd, n_vocab];
        output_norm: vector "output_norm" [n_embd];
        output: linear "output" [n_embd -> n_vocab] or token_embd;
    }

    graph {
        let x = token_embd[tokens];
        output(rms_norm(x, output_norm, eps))
    }

    test { n_embd: 64, n_head: 2, n_layer: 2, n_ff: 96, n_vocab: 32 }
}

fn main() {}
