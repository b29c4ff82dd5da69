//! Nomic Embed: BERT with rotary instead of learned positions and SwiGLU.

arch_macros::arch! {
    name: "nomic-bert";
    like: "jina-bert-v3";

    tensors {
        ignore "ffn_up.bias", "ffn_down.bias"; // optional in files; not used by the model

        layer {
            gate: linear "ffn_gate" [n_embd -> n_ff];
        }
    }

    fn ffn(x) { down(silu(gate(x)) * up(x)) }

    checkpoint "NomicBertModel", "NomicBertForMaskedLM" {
        n_token_types = "type_vocab_size" or 2;
        n_ctx_train = "max_position_embeddings" or "n_positions" or 2048;
        n_embd = "hidden_size" or "n_embd";
        n_layer = "num_hidden_layers" or "n_layer";
        n_head = "num_attention_heads" or "n_head";
        n_ff = "intermediate_size" or "n_inner";
        layer_norm_eps = "layer_norm_eps" or "layer_norm_epsilon" or 0.000000000001;
        rope_freq_base = "rope_parameters.rope_theta" or "rotary_emb_base" or 1000.0;
        check first("hidden_act", text("silu")) == text("silu"), "hidden_act must be silu for this architecture";
        check first("activation_function", text("swiglu")) == text("swiglu"), "activation_function must be swiglu for this architecture";
        check first("qkv_proj_bias", false) == false && first("prenorm", false) == false, "qkv_proj_bias and prenorm are not supported";
        check first("num_experts", 0) == 0 && first("moe_every_n_layers", 0) == 0, "experts are not supported by this architecture";
        ignore "pooler.", "cls.";
        token_embd <- "embeddings.word_embeddings";
        token_types <- "embeddings.token_type_embeddings";
        token_embd_norm <- "embeddings.LayerNorm" or "emb_ln";
        without cls, cls_output "the class has no classifier";
        layer "layers.{}" {
            wq <- ".self_attn.q_proj" or "encoder.layers.{}.attn.Wqkv" split 0 / 3;
            wk <- ".self_attn.k_proj" or "encoder.layers.{}.attn.Wqkv" split 1 / 3;
            wv <- ".self_attn.v_proj" or "encoder.layers.{}.attn.Wqkv" split 2 / 3;
            wo <- ".self_attn.o_proj" or "encoder.layers.{}.attn.out_proj";
            attn_output_norm <- ".post_attention_layernorm" or "encoder.layers.{}.norm1";
            gate <- ".mlp.gate_proj" or "encoder.layers.{}.mlp.fc12";
            up <- ".mlp.up_proj" or "encoder.layers.{}.mlp.fc11";
            down <- ".mlp.down_proj" or "encoder.layers.{}.mlp.fc2";
            layer_output_norm <- ".post_mlp_layernorm" or "encoder.layers.{}.norm2";
        }
    }
}
