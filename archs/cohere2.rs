//! Command R7B and Command A: parallel attention and feed-forward network after one layer norm. Sliding
//! windows with rotary positions; every fourth layer has full attention without positions. Tied, scaled
//! logits.

arch_macros::arch! {
    name: "cohere2";
    rope: norm;

    tensors {
        use tied_output, logit_scale, sliding_window(period = 4);

        layer {
            attn_norm: vector "attn_norm" [n_embd];
            use self_attention;
            use gated_ffn;
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = layer_norm(x, attn_norm);
            x += attend(h, rotated = swa_pattern, window = sliding(n_swa, is_swa)) + ffn(h);
        }
        scale_logits(output(layer_norm(x, output_norm)))
    }

    checkpoint "Cohere2ForCausalLM" {
        logit_scale = "logit_scale" or 0.0625;
        n_swa = "sliding_window" or 4096;
        swa_pattern = "layer_types" == text("sliding_attention") or "sliding_window_pattern" or 4;
        attn_norm <- ".input_layernorm";
    }

    test { n_embd: 256, n_head: 4, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_swa: 32 }
}
