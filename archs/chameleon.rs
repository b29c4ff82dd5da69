//! Chameleon: Llama with layer norms per query and key head. The 34B model normalizes after the blocks
//! instead of before; this form has no recorded reference results. Text only: image tokens are masked.

arch_macros::arch! {
    name: "chameleon";
    rope: norm;

    hparams {
        norms_after: bool = "swin_norm" or false;
        // Tokens 4 to 8195 are image tokens.
        let has_image_tokens = n_vocab >= 8196;
    }

    tensors {
        use tied_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention;
            q_norm:    vector "attn_q_norm"      [head_dim, n_head];
            q_norm_b?: raw    "attn_q_norm.bias" [head_dim, n_head];
            k_norm:    vector "attn_k_norm"      [head_dim, n_head_kv];
            k_norm_b?: raw    "attn_k_norm.bias" [head_dim, n_head_kv];
            use gated_ffn;
        }
    }

    fn queries(x) {
        let q = layer_norm(heads(wq(x), n_head), 0.00001) * q_norm;
        if has(q_norm_b) { q + q_norm_b } else { q }
    }

    fn keys(x) {
        let k = layer_norm(heads(wk(x), n_head_kv), 0.00001) * k_norm;
        if has(k_norm_b) { k + k_norm_b } else { k }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            if norms_after {
                x += rms_norm(attend(x), attn_norm);
                x += rms_norm(ffn(x), ffn_norm);
            } else {
                x += attend(rms_norm(x, attn_norm));
                x += ffn(rms_norm(x, ffn_norm));
            }
        }
        let logits = output(rms_norm(x, output_norm));
        if has_image_tokens {
            let never = clamp(logits[4..8196], -3.4028235e38, -3.4028235e38);
            concat(concat(logits[..4], never), logits[8196..])
        } else {
            logits
        }
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
