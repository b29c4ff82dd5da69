//! Arcee AFM: Llama attention with a feed-forward network of squared ReLUs without a gate.

arch_macros::arch! {
    name: "arcee";
    like: "decoder";
    rope: norm;

    tensors {
        rope_freqs?: vector [n_rot / 2];

        layer {
            without gate;
            use plain_ffn;
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(rms_norm(x, attn_norm), factors = rope_freqs);
            x += ffn(rms_norm(x, ffn_norm), act = relu_sqr);
        }
        output(rms_norm(x, output_norm))
    }

    checkpoint "ArceeForCausalLM" {
        without rope_freqs "the factors follow from the rotary scaling of the configuration";
        wq <- ".self_attn.q_proj" pairs n_head;
        wk <- ".self_attn.k_proj" pairs n_head_kv;
    }
}
