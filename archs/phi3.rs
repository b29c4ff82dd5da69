//! Phi-3 and Phi-4: a fused gate and up projection, and LongRoPE frequency factors for short and long
//! contexts.

arch_macros::arch! {
    name: "phi3";
    like: "decoder";
    rope: neox;

    tensors {
        rope_short?, rope_long?: vector "rope_factors_short", "rope_factors_long" [n_rot / 2];

        layer {
            without gate;
            use fused_gated_ffn;
        }
    }

    graph {
        let x = with_media(token_embd[tokens]);
        for layer {
            x += attend(rms_norm(x, attn_norm), short = rope_short, long = rope_long);
            x += ffn(rms_norm(x, ffn_norm));
        }
        output(rms_norm(x, output_norm))
    }

    checkpoint "Phi3ForCausalLM" {
        without rope_short, rope_long "the factors follow from the rotary scaling of the configuration";
        wq <- ".self_attn.qkv_proj" rows 0..n_head * head_dim;
        wk <- ".self_attn.qkv_proj" rows n_head * head_dim..(n_head + n_head_kv) * head_dim;
        wv <- ".self_attn.qkv_proj" rows (n_head + n_head_kv) * head_dim..(n_head + 2 * n_head_kv) * head_dim;
    }
}
