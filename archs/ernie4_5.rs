//! ERNIE 4.5, dense: grouped-query attention, SwiGLU. The attention output is projected without the bias that files
//! may hold.

arch_macros::arch! {
    name: "ernie4_5";
    like: "qwen2";
    rope: norm;

    tensors {
        layer {
            ignore "attn_output.bias"; // recorded results leave it out
        }
    }

    test { n_embd: 256, n_head: 4, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
