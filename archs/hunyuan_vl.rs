//! HunyuanOCR language model: Hunyuan with multi-axis rotary positions (XD-RoPE) if the file contains sections.

arch_macros::arch! {
    name: "hunyuan_vl";
    like: "hunyuan-dense";
    rope: neox or mrope;

    fn embeddings() { with_media(token_embd[tokens]) }
}
