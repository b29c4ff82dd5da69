//! HunyuanOCR's language model: that of Hunyuan, rotated by the axes of positions where a file has sections.

arch_macros::arch! {
    name: "hunyuan_vl";
    like: "hunyuan-dense";
    rope: neox or mrope;
}
