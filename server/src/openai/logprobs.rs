//! How likely tokens were, in the two forms that OpenAI has for it.

use engine::sample::Token;
use engine::vocab::Vocab;
use serde_json::{Map, Value as Json, json};

use crate::scheduler::TokenLogprob;

/// A token as text; bytes that are no text are replaced.
pub fn token_text(vocab: &Vocab, token: Token) -> String {
    String::from_utf8_lossy(vocab.token_to_piece(token, true)).into_owned()
}

/// As chats have it.
pub fn of_chat(vocab: &Vocab, logprob: &TokenLogprob) -> Json {
    let one = |token: Token, logprob: f32| {
        json!({
            "token": token_text(vocab, token),
            "logprob": logprob,
            "bytes": vocab.token_to_piece(token, true),
        })
    };
    let mut told = one(logprob.token, logprob.logprob);
    let top: Vec<Json> = logprob
        .top
        .iter()
        .map(|&(token, logprob)| one(token, logprob))
        .collect();
    told["top_logprobs"] = top.into();
    told
}

/// As completions have it: lists of the same length.
#[derive(Default)]
pub struct Lists {
    tokens: Vec<Json>,
    logprobs: Vec<Json>,
    top: Vec<Json>,
    offsets: Vec<Json>,
}

impl Lists {
    /// Adds a token that begins at a character of the text; `None`: nothing is known of how likely it was.
    pub fn push(&mut self, vocab: &Vocab, token: Token, logprob: Option<&TokenLogprob>, offset: usize) {
        self.tokens.push(token_text(vocab, token).into());
        self.logprobs.push(logprob.map(|l| l.logprob).into());
        let top = |l: &TokenLogprob| -> Map<String, Json> {
            let pairs = l
                .top
                .iter()
                .map(|&(token, logprob)| (token_text(vocab, token), logprob.into()));
            pairs.collect()
        };
        self.top.push(logprob.map(top).into());
        self.offsets.push(offset.into());
    }

    /// The object of four lists.
    pub fn json(self) -> Json {
        json!({
            "tokens": self.tokens,
            "token_logprobs": self.logprobs,
            "top_logprobs": self.top,
            "text_offset": self.offsets,
        })
    }
}
