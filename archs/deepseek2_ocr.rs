//! DeepSeek-OCR language model: DeepSeek MoE with the gating of the file, and rotary positions with NeoX
//! pairing.

arch_macros::arch! {
    name: "deepseek2-ocr";
    like: "deepseek";
    rope: neox;

    hparams {
        without weights_scale;
        check rope_freq_base == 10000.0, "rope.freq_base must be 10000";
        let as_many = n_head_kv == n_head;
        check as_many, "attention.head_count_kv must equal attention.head_count";
    }

    tensors {
        layer {
            if il >= n_dense {
                use expert_routing;
                probs_bias?: raw "exp_probs_b.bias" [n_expert];
            }
        }
    }

    graph {
        let x = with_media(token_embd[tokens]);
        for layer {
            x += attend(rms_norm(x, attn_norm), rope_scale = 1.0, dims = head_dim, magnitude = 1.0, yarn = false);
            let h = rms_norm(x, ffn_norm);
            if il < n_dense {
                x += ffn(h);
            } else {
                x += routed_by_keys(h, selection_bias = probs_bias) + shared_experts(h);
            }
        }
        output(rms_norm(x, output_norm))
    }

    test {
        n_embd: 256, n_head: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_expert: 2, n_expert_used: 2, n_ff_exp: 384,
        n_shared: 1
    }
}
