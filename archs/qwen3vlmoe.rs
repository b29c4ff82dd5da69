//! Qwen3-VL language model with experts: the graph of Qwen3 MoE with the rotary positions and the features of images of
//! Qwen3-VL.

arch_macros::arch! {
    name: "qwen3vlmoe";
    like: "qwen3moe";
    rope: imrope;

    hparams {
        n_deep: usize = "n_deepstack_layers" or 0;
    }

    graph {
        let x = with_media(token_embd[tokens]);
        for layer {
            x += attend(rms_norm(x, attn_norm));
            x += routed(rms_norm(x, ffn_norm));
            if il < n_deep {
                x = deepstack(x);
            }
        }
        output(rms_norm(x, output_norm))
    }
}
