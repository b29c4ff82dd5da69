//! Llama 1 to 3, Mistral, Mixtral, and many models that share their graph: grouped-query attention and
//! SwiGLU, dense or with experts.

arch_macros::arch! {
    name: "llama";
    rope: norm;

    hparams {
        kq_scale: f32 = "attention.scale" or 1.0 / sqrt(head_dim);
    }

    tensors {
        use tied_output;
        use rope_factors;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention;
            if n_expert == 0 {
                use gated_ffn;
            } else {
                use experts;
                override gate_exps?: experts "ffn_gate_exps" [n_embd -> n_ff; n_expert];
            }
        }
    }

    graph {
        let x = with_media(token_embd[tokens]);
        for layer {
            x += attend(rms_norm(x, attn_norm), factors = rope_freqs, short = rope_short, long = rope_long,
                        scale = kq_scale);
            x += ffn_or_experts(rms_norm(x, ffn_norm));
        }
        output(rms_norm(x, output_norm))
    }

    fn ffn_or_experts(h) {
        if n_expert == 0 { ffn(h) } else { routed(h) }
    }

    checkpoint "LlamaForCausalLM", "MistralForCausalLM" {
        n_rot = head_dim;
        check !given("sliding_window") || "sliding_window" >= n_ctx_train,
              "sliding windows of this class are not supported; set sliding_window to null if the context is shorter";
        attn_norm <- ".input_layernorm";
        ffn_norm <- ".post_attention_layernorm";
        wq <- ".self_attn.q_proj" pairs n_head;
        wk <- ".self_attn.k_proj" pairs n_head_kv;
        without router, gate_exps, up_exps, down_exps "the class has no experts";
    }

    checkpoint "MixtralForCausalLM" like "LlamaForCausalLM" {
        rope_freq_base = "rope_parameters.rope_theta" or "rope_theta" or 1000000.0;
        without gate, up, down "all layers have experts";
        router <- ".block_sparse_moe.gate" or ".mlp.gate";
        gate_exps <- stack ".block_sparse_moe.experts.{}.w1" or ".mlp.experts.gate_up_proj" split 0 / 2;
        up_exps <- stack ".block_sparse_moe.experts.{}.w3" or ".mlp.experts.gate_up_proj" split 1 / 2;
        down_exps <- stack ".block_sparse_moe.experts.{}.w2" or ".mlp.experts.down_proj";
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2 }
}
