//! ChatGLM 3 and GLM-4 9B: a fused gate and up projection, and rotary positions on half of each head.

arch_macros::arch! {
    name: "chatglm";
    like: "decoder";
    rope: norm;

    tensors {
        layer {
            without gate;
            use fused_gated_ffn;
        }
    }
}
