//! Qwen3-VL's dense language model: the graph of Qwen3 with positions in time, height and width that take turns over the
//! rotary pairs. What its vision tower adds to the first layers is nothing for text.

arch_macros::arch! {
    name: "qwen3vl";
    like: "qwen3";
    rope: imrope;
}
