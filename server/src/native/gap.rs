//! Prompts that ask for what is missing between two texts.

use engine::sample::Token;
use engine::vocab::Special;

use crate::api::{ApiError, ApiResult, Field, Fields, Form};
use crate::served::Served;

/// The fields of what fills a gap, besides those of completions.
pub const INFILL_FIELDS: &[Field] = &[
    Field {
        name: "input_prefix",
        form: Form::Text,
        doc: "What stands before the gap.",
    },
    Field {
        name: "input_suffix",
        form: Form::Text,
        doc: "What stands behind it.",
    },
    Field {
        name: "input_extra",
        form: Form::List,
        doc: "Other files: objects with `filename` and `text`.",
    },
];

/// What a gap is in.
#[derive(Debug, Default)]
pub struct Gap {
    /// The text before it.
    pub before: String,
    /// The text behind it.
    pub behind: String,
    /// Other files, by name.
    pub others: Vec<(String, String)>,
    /// The beginning of what fills it.
    pub begun: String,
}

impl Gap {
    /// Its prompt, by the tokens that the model was trained with for it.
    pub fn prompt(&self, served: &Served) -> ApiResult<Vec<Token>> {
        let vocab = served.vocab();
        let mark = |special: Special| {
            let refused = || {
                ApiError::unsupported("this model was not trained to fill gaps: its vocabulary has no tokens for them")
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
        if served.params.is_suffix_first {
            parts.reverse();
        }
        for (mark, text) in parts {
            prompt.push(mark);
            prompt.extend(tokens(text));
        }
        prompt.push(between);
        prompt.extend(tokens(&self.begun));
        Ok(prompt)
    }
}

/// The gap that [`INFILL_FIELDS`] and `prompt` tell of.
pub fn asked_gap(fields: &mut Fields) -> ApiResult<Gap> {
    let mut others = Vec::new();
    for (i, extra) in fields.list("input_extra")?.unwrap_or_default().iter().enumerate() {
        let (Some(name), Some(text)) = (extra["filename"].as_str(), extra["text"].as_str()) else {
            return Err(ApiError::field(
                &format!("input_extra[{i}]"),
                "expected an object with filename and text",
            ));
        };
        others.push((name.to_owned(), text.to_owned()));
    }
    let mut text = |name| -> ApiResult<String> { Ok(fields.text(name)?.unwrap_or_default()) };
    Ok(Gap {
        before: text("input_prefix")?,
        behind: text("input_suffix")?,
        begun: text("prompt")?,
        others,
    })
}
