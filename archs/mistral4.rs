//! Mistral 4: the graph of DeepSeek V3 with YaRN, whose attention factor the file may cancel.

arch_macros::arch! {
    name: "mistral4";
    like: "deepseek2";

    hparams {
        let magnitude = if rope_yarn { attn_factor / (1.0 + log_mul * ln(1.0 / rope_freq_scale)) } else { attn_factor };
    }
}
