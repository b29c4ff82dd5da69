//! Jais 2: layer norms, biases in all projections, and a feed-forward network of squared ReLUs without a
//! gate.

arch_macros::arch! {
    name: "jais2";
    like: "starcoder2";

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(layer_norm(x, attn_norm));
            x += ffn(layer_norm(x, ffn_norm), act = relu_sqr);
        }
        output(layer_norm(x, output_norm))
    }
}
