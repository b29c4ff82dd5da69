//! SmolLM3: grouped-query attention and SwiGLU. Every fourth layer has no rotary positions.

arch_macros::arch! {
    name: "smollm3";
    like: "decoder";
    rope: norm;

    hparams {
        // Layers 3, 7, 11, …; not stored in files.
        let use_rope = (il + 1) % 4 != 0;
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += attend(rms_norm(x, attn_norm), rotated = use_rope);
            x += ffn(rms_norm(x, ffn_norm));
        }
        output(rms_norm(x, output_norm))
    }

    checkpoint "SmolLM3ForCausalLM" {
        rope_freq_base = "rope_parameters.rope_theta" or "rope_theta" or 2000000.0;
        check "no_rope_layers" == (if (il + 1) % 4 != 0 { 1 } else { 0 }), "no_rope_layers must list every fourth layer";
        wq <- ".self_attn.q_proj" pairs n_head;
        wk <- ".self_attn.k_proj" pairs n_head_kv;
    }
}
