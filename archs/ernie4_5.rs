//! ERNIE 4.5, dense: grouped-query attention and SwiGLU. The bias of the attention output projection is
//! ignored.

arch_macros::arch! {
    name: "ernie4_5";
    like: "decoder";
    rope: norm;

    tensors {
        layer {
            ignore "attn_output.bias"; // the recorded reference results ignore this bias
        }
    }
}
