//! Qwen3-VL dense language model: the graph of Qwen3 with interleaved positions in time, height, and width.
//! Text only: the vision features of the first layers are omitted.

arch_macros::arch! {
    name: "qwen3vl";
    like: "qwen3";
    rope: imrope;
}
