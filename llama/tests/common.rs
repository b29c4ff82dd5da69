//! Tiny models in temporary files.

use llama::{Model, ModelOptions};
use tempfile::TempDir;

/// Chat template without special tokens.
pub const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}\
                            {% if add_generation_prompt %}<assistant>{% endif %}";

/// Chat template that starts every response with an open reasoning tag, unless reasoning is disabled.
pub const THINKING: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}\
                            {% if add_generation_prompt %}<assistant>\
                            {% if enable_thinking is not defined or enable_thinking %}<think>{% endif %}\
                            {% endif %}{# </think> #}";

/// A model file that is deleted with this value.
pub struct TinyModel {
    directory: TempDir,
}

impl TinyModel {
    pub fn new(template: Option<&str>) -> TinyModel {
        TinyModel::of_bytes(&tests::text_model("llama", template))
    }

    pub fn of_bytes(bytes: &[u8]) -> TinyModel {
        let directory = tempfile::tempdir().expect("a temporary directory can be created");
        std::fs::write(directory.path().join("tiny.gguf"), bytes).expect("the directory is writable");
        TinyModel { directory }
    }

    pub fn path(&self) -> std::path::PathBuf {
        self.directory.path().join("tiny.gguf")
    }

    /// Opens the model with two threads.
    pub fn open(&self, change: impl FnOnce(ModelOptions) -> ModelOptions) -> Model {
        let options = change(Model::options().threads(2));
        options.open(self.path()).expect("the tiny model is valid")
    }
}

/// Opens a tiny model with a chat template.
pub fn chat_model() -> Model {
    TinyModel::new(Some(TEMPLATE)).open(|options| options)
}
