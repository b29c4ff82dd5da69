//! A tied tensor with a different shape.

arch_macros::arch! {
    name: "tiny";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon";
    }

    tensors {
        token_embd: embed "token_embd" [n_embd, n_vocab];
        output_norm: vector "output_norm" [n_embd];
        output: linear "output" [n_embd -> 2 * n_vocab] or token_embd;
        layer {
            attn_norm: vector "attn_norm" [n_embd];
            wq: linear "attn_q" [n_embd -> n_head * head_dim];
            wk: linear "attn_k" [n_embd -> n_head_kv * head_dim];
            wv: linear "attn_v" [n_embd -> n_head_kv * head_dim];
            wo: linear "attn_output" [n_head * head_dim -> n_embd];
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm, eps);
            let q = rope(heads(wq(h), n_head));
            let k = rope(heads(wk(h), n_head_kv));
            x += wo(attention(q, k, heads(wv(h), n_head_kv)));
        }
        output(rms_norm(x, output_norm, eps))
    }

    test { n_embd: 64, n_head: 2, n_layer: 2, n_ff: 96, n_vocab: 32 }
}

fn main() {}
