//! ModernBERT and its embedding models: symmetric sliding windows with their own rotary base, and full attention in
//! every third layer. Blocks are pre-norm, with a fused gate and up projection.

arch_macros::arch! {
    name: "modern-bert";
    rope: neox;
    attention: bidirectional;

    hparams {
        act: string = "hidden_activation" or "gelu";
        check act != "relu", "hidden_activation must be a gated activation";
        n_decision: usize = "decision_block_count" or 0;
        check n_decision == 0, "decision heads are not supported: decision_block_count must be 0";
        let gates_silu = act == "silu" || act == "swish" || act == "swiglu";
        let gates_relu = act == "reglu";
        let approximates_gelu = act == "gelu_pytorch_tanh" || act == "gelu_new" || act == "gelu_fast";
    }

    tensors {
        use sliding_window(length = 0, period = 3, kind = dense_first, base = 10000.0);
        token_embd: embed [n_embd, n_vocab];
        token_embd_norm, output_norm: vector [n_embd];
        cls?: linear [n_embd -> n_embd];
        cls_norm?:   vector "cls.norm"   [n_embd];
        cls_output?: linear "cls.output" [n_embd -> n_labels];

        layer {
            attn_norm?: vector [n_embd]; // the first layer has no such norm
            use self_attention;
            ffn_norm: vector [n_embd];
            // Files store the gate and up projections in one tensor, `ffn_up`.
            use gated_ffn;
        }
    }

    graph {
        let x = layer_norm(token_embd[tokens], token_embd_norm);
        for layer {
            let h = if has(attn_norm) { layer_norm(x, attn_norm) } else { x };
            x += attend(h, base = rope_base, rope_scale = rope_scale, window = symmetric(n_swa, is_swa));
            let h = layer_norm(x, ffn_norm);
            if gates_silu {
                x += ffn(h, act = silu);
            } else if gates_relu {
                x += ffn(h, act = relu);
            } else if approximates_gelu {
                x += ffn(h, act = gelu);
            } else {
                x += ffn(h, act = gelu_erf);
            }
        }
        layer_norm(x, output_norm)
    }

    rank(mean) {
        let h = if has(cls) { gelu_erf(cls(pooled)) } else { pooled };
        if has(cls) && has(cls_norm) {
            h = layer_norm(h, cls_norm);
        }
        cls_output(h)
    }

    checkpoint "ModernBertModel", "ModernBertForMaskedLM" {
        act = "hidden_activation" or text("gelu");
        layer_norm_eps = "norm_eps" or 0.00001;
        n_swa = "local_attention" or 128;
        swa_pattern = "layer_types" == text("sliding_attention") or "global_attn_every_n_layers" or 3;
        rope_freq_base = "rope_parameters.full_attention.rope_theta" or "global_rope_theta" or 160000.0;
        rope_base_swa = "rope_parameters.sliding_attention.rope_theta" or "local_rope_theta" or 10000.0;
        ignore "head.", "decoder.";
        token_embd <- "embeddings.tok_embeddings";
        token_embd_norm <- "embeddings.norm";
        output_norm <- "final_norm";
        without cls, cls_norm, cls_output "the class has no classifier";
        layer "layers.{}" {
            attn_norm <- ".attn_norm";
            wq <- ".attn.Wqkv" split 0 / 3;
            wk <- ".attn.Wqkv" split 1 / 3;
            wv <- ".attn.Wqkv" split 2 / 3;
            wo <- ".attn.Wo";
            ffn_norm <- ".mlp_norm";
            gate <- ".mlp.Wi" split 0 / 2;
            up <- ".mlp.Wi" split 1 / 2;
            down <- ".mlp.Wo";
        }
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_swa: 32 }
}
