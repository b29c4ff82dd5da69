//! Nomic Embed: BERT with rotary positions instead of learned ones and a gated feed-forward (SwiGLU).

arch_macros::arch! {
    name: "nomic-bert";
    like: "jina-bert-v3";

    tensors {
        ignore "ffn_up.bias", "ffn_down.bias"; // may be in a file; the model does not add them

        layer {
            gate: linear "ffn_gate" [n_embd -> n_ff];
        }
    }

    fn ffn(x) { down(silu(gate(x)) * up(x)) }
}
