//! Orion: the graph of StarCoder2 with a gated feed-forward network and an untied output projection.

arch_macros::arch! {
    name: "orion";
    like: "starcoder2";

    tensors {
        output: linear [n_embd -> n_vocab];

        layer {
            use gated_ffn;
        }
    }

    test { n_embd: 256, n_head: 4, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
