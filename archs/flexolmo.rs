//! FlexOlmo: OLMo 2 with experts.

arch_macros::arch! {
    name: "flexolmo";
    rope: neox;

    hparams {
        norm_weights: bool = "expert_weights_norm" or false;
    }

    tensors {
        use untied_output;

        layer {
            use full_qk_norm_attention, experts;
            attn_post_norm, ffn_post_norm: vector "post_attention_norm", "post_ffw_norm" [n_embd];
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += rms_norm(attend(x), attn_post_norm);
            x += rms_norm(routed(x, norm_weights = norm_weights), ffn_post_norm);
        }
        output(rms_norm(x, output_norm))
    }

    test { n_embd: 128, n_head: 4, n_head_kv: 2, n_layer: 2, n_ff: 192, n_vocab: 128, n_expert: 4, n_expert_used: 2 }
}
