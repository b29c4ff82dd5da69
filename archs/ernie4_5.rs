//! ERNIE 4.5, dense: grouped-query attention and SwiGLU. The bias of the attention output projection is
//! ignored.

arch_macros::arch! {
    name: "ernie4_5";
    like: "qwen2";
    rope: norm;

    tensors {
        layer {
            ignore "attn_output.bias"; // the recorded reference results ignore this bias
        }
    }

    test { n_embd: 256, n_head: 4, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
