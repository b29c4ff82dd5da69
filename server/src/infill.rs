//! Fill-in-the-middle prompts.

use engine::sample::Token;
use engine::vocab::Special;

use crate::api::{ApiError, ApiResult};
use crate::service::ModelService;

/// Insertion point in a text.
#[derive(Debug, Default)]
pub struct InfillPrompt {
    /// Text before the insertion point.
    pub before: String,
    /// Text after the insertion point.
    pub behind: String,
    /// Name and contents of each additional file.
    pub others: Vec<(String, String)>,
    /// Start of the insertion.
    pub inserted: String,
}

impl InfillPrompt {
    /// Builds the prompt from the model's fill-in-the-middle tokens.
    pub fn prompt(&self, service: &ModelService) -> ApiResult<Vec<Token>> {
        let vocab = service.vocab();
        let mark = |special: Special| {
            let refused = || {
                ApiError::unsupported(
                    "this model does not support fill-in-the-middle: its vocabulary has no tokens for it",
                )
            };
            vocab.special(special).ok_or_else(refused)
        };
        let (before, behind, between) = (mark(Special::FimPre)?, mark(Special::FimSuf)?, mark(Special::FimMid)?);
        let tokens = |text: &str| vocab.tokenize(text, false, false);
        let mut prompt = Vec::new();
        if vocab.add_bos() {
            prompt.extend(vocab.bos());
        }
        for (name, text) in &self.others {
            match vocab.special(Special::FimSep) {
                Some(separator) => {
                    prompt.push(separator);
                    prompt.extend(tokens(&format!("{name}\n{text}\n")));
                }
                None => prompt.extend(tokens(&format!("{name}:\n{text}\n\n"))),
            }
        }
        let mut parts = [(before, &self.before), (behind, &self.behind)];
        if service.params.suffix_first {
            parts.reverse();
        }
        for (mark, text) in parts {
            prompt.push(mark);
            prompt.extend(tokens(text));
        }
        prompt.push(between);
        prompt.extend(tokens(&self.inserted));
        Ok(prompt)
    }
}
