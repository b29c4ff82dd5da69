//! Tokens that control Whisper, and the rules for choosing tokens.

use std::ops::Range;

use engine::model::Model;
use engine::vocab::{Token, Vocab};

use super::{TIMESTAMP_STEP, TranscribeError, TranscribeOptions};

/// Maximum first timestamp in steps: 1 second.
const MAX_FIRST_TIMESTAMP: usize = 50;
/// Vocabularies of this size or more have languages.
const MULTILINGUAL_VOCAB: usize = 51_865;
/// Maximum number of tokens of preceding text in a prompt.
const MAX_BEFORE: usize = 223;

/// Control tokens of a model.
pub struct Rules {
    /// Ends the text. All text tokens have smaller ids.
    end: Token,
    start: Token,
    transcribe: Token,
    translate: Token,
    before: Token,
    without_timestamps: Token,
    /// Token of each language, with its code.
    languages: Vec<(Token, String)>,
    suppressed: Vec<Token>,
    suppressed_first: Vec<Token>,
}

/// Tokens with their times in seconds.
pub type TimedTokens<'a> = (Range<f64>, &'a [Token]);

impl Rules {
    /// Reads the tokens of a model.
    pub fn of(model: &Model) -> Result<Rules, TranscribeError> {
        let vocab = model.vocab();
        let token = |text: &str| {
            let token = text.to_owned();
            vocab.find(text).ok_or(TranscribeError::Token { token })
        };
        let list = |key: &str| -> Result<Vec<Token>, TranscribeError> {
            let ids: Option<Vec<i32>> = model.metadata().optional(key)?;
            Ok(ids
                .unwrap_or_default()
                .into_iter()
                .filter_map(|id| id.try_into().ok())
                .collect())
        };
        let (start, translate) = (token("<|startoftranscript|>")?, token("<|translate|>")?);
        let is_multilingual = model.base().n_vocab() >= MULTILINGUAL_VOCAB;
        let languages = if is_multilingual {
            languages(vocab, start + 1..translate)
        } else {
            Vec::new()
        };
        Ok(Rules {
            end: token("<|endoftext|>")?,
            start,
            transcribe: token("<|transcribe|>")?,
            translate,
            before: token("<|startofprev|>")?,
            without_timestamps: token("<|notimestamps|>")?,
            languages,
            suppressed: list("whisper.suppress_tokens")?,
            suppressed_first: list("whisper.suppress_tokens_begin")?,
        })
    }

    pub fn start(&self) -> Token {
        self.start
    }

    pub fn end(&self) -> Token {
        self.end
    }

    pub fn is_multilingual(&self) -> bool {
        !self.languages.is_empty()
    }

    /// Returns true for control tokens and timestamps.
    pub fn is_special(&self, token: Token) -> bool {
        token >= self.end
    }

    /// Returns the first timestamp.
    fn timestamps(&self) -> usize {
        self.without_timestamps as usize + 1
    }

    /// Returns the token of a language; `None` to detect it, or if the model only supports English.
    pub fn language(&self, code: Option<&str>) -> Result<Option<Token>, TranscribeError> {
        let Some(code) = code else { return Ok(None) };
        if let Some((token, _)) = self.languages.iter().find(|(_, known)| known == code) {
            return Ok(Some(*token));
        }
        if !self.is_multilingual() && code == "en" {
            return Ok(None);
        }
        let codes: Vec<&str> = self.languages.iter().map(|(_, code)| code.as_str()).collect();
        let known = if codes.is_empty() {
            "en".to_owned()
        } else {
            codes.join(", ")
        };
        Err(TranscribeError::Language {
            language: code.to_owned(),
            known,
        })
    }

    /// Returns the code of a language.
    pub fn code(&self, language: Token) -> String {
        let found = self.languages.iter().find(|(token, _)| *token == language);
        found.map(|(_, code)| code.clone()).unwrap_or_default()
    }

    /// Returns the most probable language.
    pub fn best_language(&self, logits: &[f32]) -> Token {
        let logit = |token: &Token| logits.get(*token as usize).copied().unwrap_or(f32::NEG_INFINITY);
        let tokens = self.languages.iter().map(|(token, _)| *token);
        tokens
            .max_by(|a, b| logit(a).total_cmp(&logit(b)))
            .unwrap_or(self.start)
    }

    /// Returns the prompt of a window, after the text of preceding ones.
    pub fn prompt(&self, language: Option<Token>, options: &TranscribeOptions, before: &[Token]) -> Vec<Token> {
        let mut prompt = Vec::new();
        if !before.is_empty() {
            prompt.push(self.before);
            prompt.extend_from_slice(&before[before.len().saturating_sub(MAX_BEFORE)..]);
        }
        prompt.push(self.start);
        if let Some(language) = language {
            prompt.push(language);
            prompt.push(if options.translate {
                self.translate
            } else {
                self.transcribe
            });
        }
        if options.without_timestamps {
            prompt.push(self.without_timestamps);
        }
        prompt
    }

    /// Excludes tokens that must not follow `tokens`.
    pub fn apply(&self, logits: &mut [f32], tokens: &[Token], with_timestamps: bool) {
        let first = if tokens.is_empty() {
            &self.suppressed_first[..]
        } else {
            &[]
        };
        for &token in self.suppressed.iter().chain(first) {
            exclude(logits, token as usize..token as usize + 1);
        }
        if with_timestamps {
            self.apply_timestamps(logits, tokens);
        }
    }

    /// Timestamps come in pairs, except at the start and the end, and never decrease.
    fn apply_timestamps(&self, logits: &mut [f32], tokens: &[Token]) {
        let (from, n) = (self.timestamps(), logits.len());
        exclude(logits, from - 1..from);
        let is_timestamp = |token: &Token| *token as usize >= from;
        let after_timestamp = tokens.last().is_some_and(is_timestamp);
        let after_pair = tokens.len() < 2 || is_timestamp(&tokens[tokens.len() - 2]);
        match (after_timestamp, after_pair) {
            (true, true) => exclude(logits, from..n),
            (true, false) => exclude(logits, 0..self.end as usize),
            (false, _) => (),
        }
        if let Some(&last) = tokens.iter().rfind(|token| is_timestamp(token)) {
            // Two times are equal only between phrases.
            let least = last as usize + usize::from(!after_timestamp || after_pair);
            exclude(logits, from..least);
        }
        if tokens.is_empty() {
            exclude(logits, 0..from);
            exclude(logits, from + MAX_FIRST_TIMESTAMP + 1..n);
        }
        let (text, times) = logits.split_at(from.min(n));
        if log_sum_exp(times) > text.iter().copied().fold(f32::NEG_INFINITY, f32::max) {
            exclude(logits, 0..from);
        }
    }

    /// Splits tokens of a window of `seconds` at its timestamps. Also returns the seconds that are done; `None`
    /// for the whole window.
    pub fn phrases<'a>(&self, tokens: &'a [Token], seconds: f64) -> (Vec<TimedTokens<'a>>, Option<f64>) {
        let is_timestamp = |token: &Token| *token as usize >= self.timestamps();
        let time = |token: Token| (token as usize - self.timestamps()) as f64 * TIMESTAMP_STEP;
        let mut ends: Vec<usize> = (1..tokens.len())
            .filter(|&i| is_timestamp(&tokens[i - 1]) && is_timestamp(&tokens[i]))
            .collect();
        let ends_once = matches!(tokens, [.., a, b] if !is_timestamp(a) && is_timestamp(b));
        if ends.is_empty() {
            let last = tokens
                .iter()
                .rfind(|token| is_timestamp(token))
                .map(|&token| time(token));
            let end = last.filter(|&end| end > 0.0).unwrap_or(seconds);
            return (vec![(0.0..end, tokens)], None);
        }
        if ends_once {
            ends.push(tokens.len());
        }
        let mut start = 0;
        let mut phrases = Vec::new();
        for &end in &ends {
            let part = &tokens[start..end];
            let mut times = part
                .iter()
                .filter(|token| is_timestamp(token))
                .map(|&token| time(token));
            let first = times.clone().next().unwrap_or(0.0);
            phrases.push((first..times.next_back().unwrap_or(seconds), part));
            start = end;
        }
        let done = phrases
            .last()
            .map(|(range, _)| range.end)
            .filter(|&end| !ends_once && end > 0.0);
        (phrases, done)
    }
}

fn languages(vocab: &Vocab, tokens: Range<Token>) -> Vec<(Token, String)> {
    let code = |token: Token| {
        let text = vocab.text(token);
        Some((token, text.strip_prefix("<|")?.strip_suffix("|>")?.to_owned()))
    };
    tokens.filter_map(code).collect()
}

fn exclude(logits: &mut [f32], tokens: Range<usize>) {
    let n = logits.len();
    let range = tokens.start.min(n)..tokens.end.min(n);
    if !range.is_empty() {
        logits[range].fill(f32::NEG_INFINITY);
    }
}

fn log_sum_exp(logits: &[f32]) -> f32 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if max == f32::NEG_INFINITY {
        return max;
    }
    max + logits.iter().map(|x| (x - max).exp()).sum::<f32>().ln()
}

/// Returns the token with the largest logit, the first of equal ones.
pub fn largest(logits: &[f32]) -> Token {
    let mut best = 0;
    for (i, &logit) in logits.iter().enumerate() {
        if logit > logits[best] {
            best = i;
        }
    }
    best as Token
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens of text below 10, `<|notimestamps|>` 19, timestamps at 20 and above.
    fn rules() -> Rules {
        Rules {
            end: 10,
            start: 11,
            transcribe: 14,
            translate: 13,
            before: 15,
            without_timestamps: 19,
            languages: vec![(12, "en".to_owned())],
            suppressed: vec![3],
            suppressed_first: vec![4],
        }
    }

    fn allowed(tokens: &[Token]) -> Vec<usize> {
        let mut logits: Vec<f32> = (0..100).map(|i| if i < 20 { 9.0 } else { 1.0 }).collect();
        rules().apply(&mut logits, tokens, true);
        (0..100).filter(|&i| logits[i] > f32::NEG_INFINITY).collect()
    }

    #[test]
    fn timestamps_start_come_in_pairs_and_never_decrease() {
        assert_eq!(allowed(&[]), (20..=70).collect::<Vec<_>>());
        let text: Vec<usize> = (0..19).filter(|i| *i != 3).collect();
        assert_eq!(allowed(&[22]), text);
        assert_eq!(
            allowed(&[22, 1]),
            text.iter().copied().chain(23..100).collect::<Vec<_>>()
        );
        let ends = (10..19).chain(30..100).collect::<Vec<_>>();
        assert_eq!(allowed(&[22, 1, 30]), ends);
        assert_eq!(allowed(&[22, 1, 30, 30]), text);
    }

    #[test]
    fn likely_timestamps_exclude_text() {
        let mut logits = vec![0.0; 100];
        rules().apply(&mut logits, &[22, 1], true);
        assert!(logits[..20].iter().all(|x| *x == f32::NEG_INFINITY));
    }

    #[test]
    fn phrases_end_at_pairs_of_timestamps() {
        let rules = rules();
        let parts = |tokens: &[Token]| {
            let (phrases, done) = rules.phrases(tokens, 30.0);
            (
                phrases
                    .into_iter()
                    .map(|(range, part)| (range.start, range.end, part.len()))
                    .collect::<Vec<_>>(),
                done,
            )
        };
        assert_eq!(parts(&[20, 1, 2, 70]), (vec![(0.0, 1.0, 4)], None));
        assert_eq!(
            parts(&[20, 1, 70, 70, 2, 120]),
            (vec![(0.0, 1.0, 3), (1.0, 2.0, 3)], None)
        );
        assert_eq!(parts(&[20, 1, 70, 70, 2]), (vec![(0.0, 1.0, 3)], Some(1.0)));
        assert_eq!(parts(&[1, 2]), (vec![(0.0, 30.0, 2)], None));
    }

    #[test]
    fn prompt_has_language_task_and_preceding_text() {
        let options = TranscribeOptions {
            without_timestamps: true,
            ..TranscribeOptions::default()
        };
        assert_eq!(rules().prompt(Some(12), &options, &[1, 2]), [15, 1, 2, 11, 12, 14, 19]);
        assert!(rules().language(Some("xx")).is_err());
        assert_eq!(rules().language(Some("en")).unwrap(), Some(12));
    }
}
