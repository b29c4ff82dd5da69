//! Qwen2 and Qwen2.5, dense: query, key, and value projections with biases, grouped-query attention, and
//! SwiGLU.

arch_macros::arch! {
    name: "qwen2";
    like: "decoder";
    rope: neox;

    graph {
        let x = with_media(token_embd[tokens]);
        for layer {
            x += attend(rms_norm(x, attn_norm));
            x += ffn(rms_norm(x, ffn_norm));
        }
        output(rms_norm(x, output_norm))
    }

    checkpoint "Qwen2ForCausalLM" {
        check first("use_sliding_window", false) == false, "use_sliding_window must be false: this class has no windows here";
    }
}
