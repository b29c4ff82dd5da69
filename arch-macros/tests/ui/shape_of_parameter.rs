//! The argument of a function lacks the shape that the parameter declares.

arch_macros::arch! {
    name: "slip";
    rope: neox;

    tensors {
        token_embd: embed "token_embd" [n_embd, n_vocab];
        output: linear "output" [n_embd -> n_vocab];

        layer {
            attn_norm: vector "attn_norm" [n_embd];
            up: linear "ffn_up" [n_embd -> n_ff];
            down: linear "ffn_down" [n_ff -> n_embd];
        }
    }

    fn ffn(x: [n_embd, T]) {
        down(silu(up(x)))
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += ffn(up(rms_norm(x, attn_norm)));
        }
        output(x)
    }

    test { n_embd: 64, n_head: 2, n_layer: 2, n_ff: 96, n_vocab: 32 }
}

fn main() {}
