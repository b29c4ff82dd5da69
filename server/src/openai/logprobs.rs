//! Log probabilities in the formats of chat completions and text completions.

use engine::sample::Token;
use engine::vocab::Vocab;
use serde_json::{Map, Value as Json, json};

use crate::scheduler::TokenLogprob;

/// Returns the text of a token; invalid UTF-8 is replaced.
pub fn token_text(vocab: &Vocab, token: Token) -> String {
    String::from_utf8_lossy(vocab.token_to_piece(token, true)).into_owned()
}

/// Formats a log probability for a chat completion.
pub fn chat_logprob_json(vocab: &Vocab, logprob: &TokenLogprob) -> Json {
    rated(vocab, logprob, ["logprob", "top_logprobs"], |logprob| logprob)
}

/// Formats a probability after sampling, as in llama-server. Tokens of probability 0 are omitted.
pub fn probability_json(vocab: &Vocab, logprob: &TokenLogprob) -> Json {
    let mut possible = logprob.clone();
    possible.top.retain(|(_, logprob)| logprob.exp() > 0.0);
    rated(vocab, &possible, ["prob", "top_probs"], f32::exp)
}

/// Formats a token and its alternatives; `names` are the fields of the value and of the list.
fn rated(vocab: &Vocab, logprob: &TokenLogprob, names: [&str; 2], value: fn(f32) -> f32) -> Json {
    let one = |token: Token, logprob: f32| {
        let mut one = json!({
            "id": token,
            "token": token_text(vocab, token),
            "bytes": vocab.token_to_piece(token, true),
        });
        one[names[0]] = value(logprob).into();
        one
    };
    let mut told = one(logprob.token, logprob.logprob);
    let top = logprob.top.iter().map(|&(token, logprob)| one(token, logprob));
    told[names[1]] = top.collect::<Vec<Json>>().into();
    told
}

/// Log probabilities of a text completion: parallel lists with one element per token.
#[derive(Default)]
pub struct LogprobLists {
    tokens: Vec<Json>,
    logprobs: Vec<Json>,
    top: Vec<Json>,
    offsets: Vec<Json>,
}

impl LogprobLists {
    /// Appends a token. `offset` is its character offset in the output; `logprob` is `None` for the first
    /// token of a prompt.
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

    /// Returns the object of four lists.
    pub fn json(self) -> Json {
        json!({
            "tokens": self.tokens,
            "token_logprobs": self.logprobs,
            "top_logprobs": self.top,
            "text_offset": self.offsets,
        })
    }
}
