//! MPNet and its sentence encoders: a bidirectional encoder with learned positions, relative position biases
//! that all layers share, post-norm blocks, and GELU.

arch_macros::arch! {
    name: "mpnet";
    rope: none;
    attention: bidirectional;

    hparams {
        n_buckets: usize = "attention.relative_buckets_count";
    }

    tensors {
        token_embd: embed [n_embd, n_vocab];
        // The first two rows are for padding.
        position_embd: embed [n_embd, n_ctx_train + 2];
        token_embd_norm: norm [n_embd];
        cls?: linear [n_embd -> n_embd];
        cls_output?: linear "cls.output" [n_embd -> n_labels];

        layer {
            if il == 0 {
                rel_b: vector "attn_rel_b" [n_head, n_buckets];
            }
            use self_attention;
            attn_output_norm: norm [n_embd];
            use plain_ffn;
            layer_output_norm: norm [n_embd];
        }
    }

    graph {
        let x = layer_norm(token_embd[tokens] + position_embd[positions + 2], token_embd_norm);
        for layer {
            let attn = attend(x, rotated = false, relative = first_layer(rel_b));
            x = layer_norm(x + attn, attn_output_norm);
            x = layer_norm(x + ffn(x, act = gelu_erf), layer_output_norm);
        }
        x
    }

    rank {
        let h = if has(cls) { tanh(cls(pooled)) } else { pooled };
        cls_output(h)
    }

    test { n_embd: 128, n_head: 4, n_head_kv: 4, n_layer: 2, n_ff: 192, n_vocab: 128, n_buckets: 32 }
}
