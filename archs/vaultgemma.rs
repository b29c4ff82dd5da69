//! VaultGemma: Gemma 2 without norms after the blocks.

arch_macros::arch! {
    name: "vaultgemma";
    rope: neox;

    hparams {
        kq_scale: f32 = "attention.scale" or 1.0 / sqrt(head_dim);
        // A cap of 0 disables it.
        attn_cap: f32 = "attn_logit_softcapping";
        logit_cap: f32 = "final_logit_softcapping";
    }

    tensors {
        use tied_output, sliding_window(period = 2);

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            use self_attention, gated_ffn;
        }
    }

    graph {
        let x = token_embd[tokens] * sqrt(n_embd);
        for layer {
            let h = rms_norm(x, attn_norm);
            x += attend(h, base = rope_base, scale = kq_scale, softcap = attn_cap, window = sliding(n_swa, is_swa));
            x += ffn(rms_norm(x, ffn_norm), act = gelu);
        }
        let logits = output(rms_norm(x, output_norm));
        if logit_cap > 0.0 { softcap(logits, logit_cap) } else { logits }
    }

    test {
        n_embd: 128, n_head: 4, n_head_kv: 2, n_layer: 2, n_ff: 192, n_vocab: 128, n_swa: 32, attn_cap: 50.0, logit_cap: 30.0
    }
}
