//! Mistral 3 and Ministral 3, dense and with experts: the graph of Llama with YaRN and an optional position-dependent
//! attention temperature. The file may cancel the attention factor of YaRN.

arch_macros::arch! {
    name: "mistral3";
    like: "llama";

    hparams {
        temperature: f32 = "attention.temperature_scale" or 0.0;
        n_ctx_orig: usize = "rope.scaling.original_context_length" or n_ctx_train;
        check temperature == 0.0 || n_ctx_orig > 0,
              "rope.scaling.original_context_length must not be 0 if attention.temperature_scale is set";
        attn_factor: f32 = "rope.scaling.attn_factor" or 1.0;
        // Only files with YaRN have this key.
        log_mul: f32 = "rope.scaling.yarn_log_multiplier" or 0.0;
        // Cancels YaRN's attention factor to the degree that the file specifies.
        let magnitude = attn_factor / (1.0 + 0.1 * log_mul * ln(1.0 / rope_freq_scale));
    }

    fn queries(x) {
        let q = heads(wq(x), n_head);
        if temperature != 0.0 { q * attention_temperature(temperature, n_ctx_orig, 0.0) } else { q }
    }

    graph {
        let x = with_media(token_embd[tokens]);
        for layer {
            x += attend(rms_norm(x, attn_norm), factors = rope_freqs, short = rope_short, long = rope_long,
                        magnitude = magnitude, scale = kq_scale);
            x += ffn_or_experts(rms_norm(x, ffn_norm));
        }
        output(rms_norm(x, output_norm))
    }

    test { n_embd: 256, n_head: 4, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
