//! Gemma: embeddings scaled by the square root of the width, GELU gates, and a head size independent of the
//! width.

arch_macros::arch! {
    name: "gemma";
    like: "decoder";
    rope: neox;

    graph {
        let x = token_embd[tokens] * sqrt(n_embd);
        for layer {
            x += attend(rms_norm(x, attn_norm));
            x += ffn(rms_norm(x, ffn_norm), act = gelu);
        }
        output(rms_norm(x, output_norm))
    }

    checkpoint "GemmaForCausalLM" {
        head_dim = "head_dim" or 256;
        attn_norm <- ".input_layernorm" plus 1;
        ffn_norm <- ".post_attention_layernorm" plus 1;
        output_norm <- "model.norm" plus 1;
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 1, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
