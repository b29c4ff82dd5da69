//! Granite 4 hybrid: Granite whose layers without key heads are Mamba 2 mixers, with optional experts in
//! every layer.

arch_macros::arch! {
    name: "granitehybrid";
    like: "granite";

    hparams {
        without deep, n_deep;
        without check "deepstack_mapping must contain -1 or the number of features";
        logit_scale: f32 = "logit_scale" or 0.0;
        let logit_divisor = if logit_scale == 0.0 { 1.0 } else { logit_scale };
        check d_inner == 2 * n_embd, "ssm.inner_size must be twice embedding_length";
        let recurrent = n_head_kv == 0;
    }

    tensors {
        layer {
            if recurrent {
                use mamba2_mixer;
            } else {
                use self_attention;
            }
        }
    }

    graph {
        let x = token_embd[tokens] * embedding_scale;
        for layer {
            let h = rms_norm(x, attn_norm);
            if recurrent {
                x += mixer(h) * residual_scale;
            } else {
                x += attend(h, rotated = use_rope, factors = rope_freqs, short = rope_short, long = rope_long,
                            scale = kq_scale) * residual_scale;
            }
            x += ffn_and_shared(rms_norm(x, ffn_norm)) * residual_scale;
        }
        output(rms_norm(x, output_norm)) / logit_divisor
    }

    checkpoint "GraniteMoeHybridForCausalLM" like "GraniteForCausalLM" {
        d_conv = "mamba_d_conv" or 4;
        d_inner = int(first("mamba_expand", 2) * n_embd);
        d_state = "mamba_d_state";
        n_ssm = "mamba_n_heads";
        n_group = "mamba_n_groups" or 1;
        n_head_kv = if first("layer_types", "layers_block_type") == text("attention") ||
            first("layer_types", "layers_block_type") == text("full_attention") {
                first("num_key_value_heads", n_head)
            } else {
                0
            };
        n_ff = if n_expert > 0 { "intermediate_size" } else { "shared_intermediate_size" };
        n_ff_shexp = "shared_intermediate_size" or 0;
        use_rope = first("position_embedding_type", text("nope")) == text("rope");
        check first("mamba_proj_bias", false) == false, "mamba_proj_bias is not supported";
        layer {
            router <- ".block_sparse_moe.router.layer" or ".block_sparse_moe.router";
            gate_exps <- ".block_sparse_moe.input_linear" split 0 / 2 or ".block_sparse_moe.experts.gate_up_proj" split 0 / 2;
            up_exps <- ".block_sparse_moe.input_linear" split 1 / 2 or ".block_sparse_moe.experts.gate_up_proj" split 1 / 2;
            down_exps <- ".block_sparse_moe.output_linear" or ".block_sparse_moe.experts.down_proj";
            // The shared network is the only one in models without experts.
            gate <- ".shared_mlp.input_linear" split 0 / 2;
            up <- ".shared_mlp.input_linear" split 1 / 2;
            down <- ".shared_mlp.output_linear";
            gate_shexp <- ".shared_mlp.input_linear" split 0 / 2;
            up_shexp <- ".shared_mlp.input_linear" split 1 / 2;
            down_shexp <- ".shared_mlp.output_linear";
        }
    }

    test {
        n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, d_conv: 4, d_inner: 512, d_state: 16, n_ssm: 2, n_group: 2
    }
}
