//! Nomic Embed: BERT with rotary instead of learned positions and SwiGLU.

arch_macros::arch! {
    name: "nomic-bert";
    like: "jina-bert-v3";

    tensors {
        ignore "ffn_up.bias", "ffn_down.bias"; // optional in files; not used by the model

        layer {
            gate: linear "ffn_gate" [n_embd -> n_ff];
        }
    }

    fn ffn(x) { down(silu(gate(x)) * up(x)) }
}
