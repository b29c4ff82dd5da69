//! LLaDA with experts: a diffusion model with the layers of Qwen3 MoE, unnormalized routing weights, and
//! bidirectional attention.

arch_macros::arch! {
    name: "llada-moe";
    like: "qwen3moe";
    attention: bidirectional;

    tensors {
        use untied_output;
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(rms_norm(x, attn_norm));
            x += routed(rms_norm(x, ffn_norm), norm_weights = false);
        }
        output(rms_norm(x, output_norm))
    }
}
