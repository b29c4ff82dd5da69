//! Short names of popular models.

/// Short name of a model.
#[derive(Debug)]
pub struct ShortName {
    /// Lowercase short name: `family:size`.
    pub name: &'static str,
    /// Full name of the model: `user/repo:QUANT`.
    pub means: &'static str,
}

impl ShortName {
    /// Compares names, ignoring case.
    pub fn is(&self, text: &str) -> bool {
        self.name.eq_ignore_ascii_case(text)
    }
}

macro_rules! table {
    ($($name:literal => $means:literal,)*) => {
        /// All short names. A family without a size refers to its most popular model.
        pub const SHORT_NAMES: &[ShortName] = &[$(ShortName { name: $name, means: $means }),*];
    };
}

table! {
    "gemma3" => "ggml-org/gemma-3-4b-it-GGUF:Q4_K_M",
    "gemma3:270m" => "ggml-org/gemma-3-270m-it-GGUF:Q8_0",
    "gemma3:1b" => "ggml-org/gemma-3-1b-it-GGUF:Q4_K_M",
    "gemma3:4b" => "ggml-org/gemma-3-4b-it-GGUF:Q4_K_M",
    "gemma3:12b" => "ggml-org/gemma-3-12b-it-GGUF:Q4_K_M",
    "gemma3:27b" => "ggml-org/gemma-3-27b-it-GGUF:Q4_K_M",
    "gpt-oss" => "ggml-org/gpt-oss-20b-GGUF",
    "gpt-oss:20b" => "ggml-org/gpt-oss-20b-GGUF",
    "gpt-oss:120b" => "ggml-org/gpt-oss-120b-GGUF",
    "llama3.1:8b" => "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M",
    "llama3.2" => "bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M",
    "llama3.2:1b" => "bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M",
    "llama3.2:3b" => "bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M",
    "mistral:7b" => "bartowski/Mistral-7B-Instruct-v0.3-GGUF:Q4_K_M",
    "qwen2.5:0.5b" => "Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M",
    "qwen2.5:1.5b" => "Qwen/Qwen2.5-1.5B-Instruct-GGUF:Q4_K_M",
    "qwen2.5:3b" => "Qwen/Qwen2.5-3B-Instruct-GGUF:Q4_K_M",
    "qwen3" => "Qwen/Qwen3-8B-GGUF:Q4_K_M",
    "qwen3:0.6b" => "Qwen/Qwen3-0.6B-GGUF:Q8_0",
    "qwen3:1.7b" => "Qwen/Qwen3-1.7B-GGUF:Q8_0",
    "qwen3:4b" => "Qwen/Qwen3-4B-GGUF:Q4_K_M",
    "qwen3:8b" => "Qwen/Qwen3-8B-GGUF:Q4_K_M",
    "qwen3:14b" => "Qwen/Qwen3-14B-GGUF:Q4_K_M",
    "qwen3:30b" => "Qwen/Qwen3-30B-A3B-GGUF:Q4_K_M",
    "qwen3:32b" => "Qwen/Qwen3-32B-GGUF:Q4_K_M",
    "smollm2" => "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF:Q4_K_M",
    "smollm2:1.7b" => "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF:Q4_K_M",
    "smollm2:135m" => "bartowski/SmolLM2-135M-Instruct-GGUF:Q8_0",
    "smollm2:360m" => "HuggingFaceTB/SmolLM2-360M-Instruct-GGUF:Q8_0",
    "smollm3" => "ggml-org/SmolLM3-3B-GGUF:Q4_K_M",
}
