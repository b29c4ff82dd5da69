//! Falcon H1: in every layer, attention and a Mamba 2 mixer run in parallel on the same normalized input, and
//! their outputs are added. The Mamba norm is optional and follows the gate: published models set
//! `mamba_norm_before_gate` to false, and files have no key for the other order.

arch_macros::arch! {
    name: "falcon-h1";
    like: "mamba2";
    rope: neox;

    tensors {
        ignore "rope_freqs"; // the graph uses no frequency factors

        layer {
            conv_b?:   raw    "ssm_conv1d.bias" [d_conv_in];
            ssm_norm?: vector "ssm_norm"        [d_inner / n_group, n_group];
            use self_attention, gated_ffn;
            ignore "attn_output.bias"; // optional in files; not used by the model
            ffn_norm: raw "ffn_norm" [n_embd];
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm);
            x += attend(h) + mixer(h);
            x += ffn(rms_norm(x) * ffn_norm);
        }
        output(rms_norm(x, output_norm))
    }

    checkpoint "FalconH1ForCausalLM" {
        d_conv = "mamba_d_conv" or 4;
        d_inner = "mamba_d_ssm" or int(first("mamba_expand", 2) * n_embd);
        d_state = "mamba_d_state";
        n_ssm = "mamba_n_heads";
        n_group = "mamba_n_groups" or 1;
        check first("mamba_rms_norm", false) == false || first("mamba_norm_before_gate", true) == false,
              "mamba_norm_before_gate must be false: files have no key for the other order";
        check first("attention_bias", false) == false && first("mlp_bias", false) == false && first("projectors_bias", false) == false,
              "biases of projections are not supported";
        token_embd <- "model.embed_tokens" times first("embedding_multiplier", 1.0);
        output_norm <- "model.final_layernorm";
        output <- "lm_head" times first("lm_head_multiplier", 1.0) or "model.embed_tokens" times first("lm_head_multiplier", 1.0);
        layer {
            attn_norm <- ".input_layernorm";
            ffn_norm <- ".pre_ff_layernorm";
            ssm_in <- ".mamba.in_proj" rows 0..d_inner
                times first("ssm_in_multiplier", 1.0) * first(at("ssm_multipliers", 0), 1.0)
                and ".mamba.in_proj" rows d_inner..2 * d_inner
                times first("ssm_in_multiplier", 1.0) * first(at("ssm_multipliers", 1), 1.0)
                and ".mamba.in_proj" rows 2 * d_inner..2 * d_inner + n_group * d_state
                times first("ssm_in_multiplier", 1.0) * first(at("ssm_multipliers", 2), 1.0)
                and ".mamba.in_proj" rows 2 * d_inner + n_group * d_state..2 * d_inner + 2 * n_group * d_state
                times first("ssm_in_multiplier", 1.0) * first(at("ssm_multipliers", 3), 1.0)
                and ".mamba.in_proj" rows 2 * d_inner + 2 * n_group * d_state..2 * d_inner + 2 * n_group * d_state + n_ssm
                times first("ssm_in_multiplier", 1.0) * first(at("ssm_multipliers", 4), 1.0);
            ssm_out <- ".mamba.out_proj" times first("ssm_out_multiplier", 1.0);
            wq <- ".self_attn.q_proj" times first("attention_in_multiplier", 1.0);
            wk <- ".self_attn.k_proj" times first("attention_in_multiplier", 1.0) * first("key_multiplier", 1.0);
            wv <- ".self_attn.v_proj" times first("attention_in_multiplier", 1.0);
            wo <- ".self_attn.o_proj" times first("attention_out_multiplier", 1.0);
            gate <- ".feed_forward.gate_proj" times first(at("mlp_multipliers", 0), 1.0);
            up <- ".feed_forward.up_proj";
            down <- ".feed_forward.down_proj" times first(at("mlp_multipliers", 1), 1.0);
        }
    }

    test {
        n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128, d_conv: 4, d_inner: 512, d_state: 128,
        n_ssm: 2, n_group: 2
    }
}
