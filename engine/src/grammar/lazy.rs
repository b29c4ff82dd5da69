//! Lazy grammars, which constrain parts of the output, such as tool calls. A part starts at a marker and ends
//! where the grammar is complete. All other output is unconstrained.

use std::sync::Arc;
use std::time::Duration;

use llguidance::Matcher;
use llguidance::toktrie::{TokEnv, TokTrie};

use super::limit::limited;
use crate::vocab::Token;

/// Conditions under which a part of the output becomes constrained.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trigger {
    /// Markers that start a part. The grammar covers the marker and the text after it. A marker is ignored if
    /// the grammar rejects the output following it.
    pub marks: Vec<String>,
    /// Names that identify a part without a marker at the start of the output or directly after another part.
    /// Such a part is recognized once the output matches the grammar and contains one of the names and at
    /// least one more byte.
    pub names: Vec<String>,
    /// Opening and closing tag of an unconstrained prefix, such as reasoning.
    pub prefix: Option<(String, String)>,
    /// The output starts inside that prefix, because the prompt contains the opening tag.
    pub starts_in_prefix: bool,
    /// The grammar covers all output except the prefix, which is optional. Marks and names do not apply.
    pub covers_rest: bool,
}

/// Bytes that may separate parts.
const SEPARATORS: &[u8] = b",; \n\t\r";
/// Maximum number of bytes to recognize a part without a marker.
const MAX_HEAD: usize = 1024;
/// Time limit for finding out whether a part has started.
const PER_PART: Duration = Duration::from_millis(50);

/// Scans unconstrained output for the start of a part.
#[derive(Clone)]
pub(super) struct Lazy {
    trigger: Arc<Trigger>,
    /// Matcher of the grammar in its initial state.
    begin: Matcher,
    env: TokEnv,
    place: Place,
    /// Recent bytes of the output, where a part may start.
    text: Vec<u8>,
    /// Tokens of `text` with their offsets.
    tokens: Vec<(Token, usize)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Start of the output: only white space.
    Start,
    /// Inside the unconstrained prefix.
    Prefix,
    /// A part may start here without a marker.
    Head,
    /// Outside a part; each part must start with a marker.
    Free,
    /// Inside a part that the grammar constrains.
    Part,
}

impl Lazy {
    pub fn new(trigger: Trigger, begin: Matcher, env: TokEnv) -> Lazy {
        let mut lazy = Lazy {
            trigger: Arc::new(trigger),
            begin,
            env,
            place: Place::Start,
            text: Vec::new(),
            tokens: Vec::new(),
        };
        lazy.reset();
        lazy
    }

    /// Returns true outside of parts.
    pub fn is_free(&self) -> bool {
        match self.place {
            Place::Part => false,
            Place::Start => !self.trigger.covers_rest,
            _ => true,
        }
    }

    /// Returns true inside a part.
    pub fn is_in_part(&self) -> bool {
        self.place == Place::Part
    }

    /// Returns true if the grammar covers the end of the output.
    pub fn covers_rest(&self) -> bool {
        self.trigger.covers_rest
    }

    /// Returns the end-of-generation tokens where they would end the output before the part that the grammar covers.
    pub fn premature_ends(&self) -> &[Token] {
        if self.trigger.covers_rest && self.is_free() {
            self.env.tok_trie().eos_tokens()
        } else {
            &[]
        }
    }

    /// Returns the grammar in its initial state.
    pub fn begin(&self) -> &Matcher {
        &self.begin
    }

    /// Returns the tokens that continue the opening tag of an optional prefix; `None` after the start of the output.
    pub fn opening(&self) -> Option<Vec<Token>> {
        let (Place::Start, Some((open, _))) = (self.place, &self.trigger.prefix) else {
            return None;
        };
        if !self.trigger.covers_rest {
            return None;
        }
        let trie = self.env.tok_trie();
        let rest = open.as_bytes().strip_prefix(self.text.as_slice()).unwrap_or_default();
        let plain = (1..=rest.len()).filter_map(|n| trie.token_id(&rest[..n]));
        let special = trie.get_special_token(std::str::from_utf8(rest).unwrap_or_default());
        Some(plain.chain(special).collect())
    }

    /// Returns true if output was pushed that belongs to no part yet.
    pub fn has_text(&self) -> bool {
        !self.text.is_empty()
    }

    /// Returns the grammar advanced over the pushed output; `None` if the output does not match.
    pub fn begun(&self) -> Option<Matcher> {
        self.fitting(0)
    }

    /// Resets to the start of the output.
    pub fn reset(&mut self) {
        self.go_on(if self.trigger.starts_in_prefix {
            Place::Prefix
        } else {
            Place::Start
        });
    }

    /// Ends the current part.
    pub fn release(&mut self) {
        self.go_on(Place::Head);
    }

    fn go_on(&mut self, place: Place) {
        self.place = place;
        self.text.clear();
        self.tokens.clear();
    }

    /// Advances by an unconstrained token. Returns the advanced grammar if the token started a part.
    pub fn push(&mut self, token: Token) -> Option<Matcher> {
        self.tokens.push((token, self.text.len()));
        let bytes = self.env.tok_trie().token(token);
        // Special tokens match by name.
        let bytes = bytes.strip_prefix(&[TokTrie::SPECIAL_TOKEN_MARKER]).unwrap_or(bytes);
        self.text.extend_from_slice(bytes);
        let trigger = self.trigger.clone();
        if trigger.covers_rest {
            return self.push_covered(&trigger);
        }
        if self.place == Place::Start && !self.begins(&trigger) {
            return None;
        }
        if let (Place::Prefix, Some((_, close))) = (self.place, &trigger.prefix) {
            let Some(at) = find(&self.text, close.as_bytes()) else {
                self.forget(self.text.len().saturating_sub(close.len()));
                return None;
            };
            self.forget(at + close.len());
            self.place = Place::Head;
        }
        let begun = self.marked(&trigger).or_else(|| self.headless(&trigger));
        if begun.is_some() {
            self.go_on(Place::Part);
        }
        begun
    }

    /// Handles a token of output that the grammar covers from its start or from the end of the prefix.
    fn push_covered(&mut self, trigger: &Trigger) -> Option<Matcher> {
        let Some((open, close)) = &trigger.prefix else {
            return self.enter_part(0);
        };
        if self.place == Place::Start {
            if self.text == open.as_bytes() {
                self.go_on(Place::Prefix);
                return None;
            }
            if open.as_bytes().starts_with(&self.text) {
                return None;
            }
            return self.enter_part(0);
        }
        let Some(at) = find(&self.text, close.as_bytes()) else {
            self.forget(self.text.len().saturating_sub(close.len()));
            return None;
        };
        let end = at + close.len();
        let n_space = n_of(&self.text[end..], |b| b.is_ascii_whitespace());
        self.enter_part(end + n_space)
    }

    /// Returns the grammar advanced over the output starting at offset `at`. Output that does not match is skipped,
    /// because it is in the token that ends the prefix.
    fn enter_part(&mut self, at: usize) -> Option<Matcher> {
        let matcher = self.fitting(at).unwrap_or_else(|| self.begin.clone());
        self.go_on(Place::Part);
        Some(matcher)
    }

    /// Detects the prefix. Returns false while more output is needed.
    fn begins(&mut self, trigger: &Trigger) -> bool {
        self.place = Place::Head;
        let n_space = n_of(&self.text, |b| b.is_ascii_whitespace());
        if let Some((open, _)) = &trigger.prefix {
            let begun = &self.text[n_space..];
            if begun.starts_with(open.as_bytes()) {
                self.forget(n_space + open.len());
                self.place = Place::Prefix;
            } else if open.as_bytes().starts_with(begun) && self.text.len() < MAX_HEAD {
                self.place = Place::Start;
                return false;
            }
        }
        true
    }

    /// Returns the grammar advanced from a marker to the end of the output.
    fn marked(&mut self, trigger: &Trigger) -> Option<Matcher> {
        let mut from = 0;
        loop {
            let at = |mark: &String| find(&self.text[from..], mark.as_bytes());
            let Some(at) = trigger
                .marks
                .iter()
                .filter(|mark| !mark.is_empty())
                .filter_map(at)
                .min()
            else {
                break;
            };
            if let Some(matcher) = self.fitting(from + at) {
                return Some(matcher);
            }
            from += at + 1;
        }
        if self.place == Place::Free {
            let longest = trigger.marks.iter().map(String::len).max().unwrap_or(0);
            self.forget(from.max((self.text.len() + 1).saturating_sub(longest)));
        }
        None
    }

    /// Returns the grammar advanced over a part without a marker.
    fn headless(&mut self, trigger: &Trigger) -> Option<Matcher> {
        if self.place != Place::Head {
            return None;
        }
        let n_space = n_of(&self.text, |b| SEPARATORS.contains(&b));
        let begun = &self.text[n_space..];
        if begun.is_empty() && self.text.len() < MAX_HEAD {
            return None;
        }
        let is_known = |name: &String| find(begun, name.as_bytes()).is_some_and(|at| at + name.len() < begun.len());
        let is_known = trigger.names.iter().any(is_known);
        let may_be = !trigger.names.is_empty() && self.text.len() < MAX_HEAD;
        let fitting = if may_be { self.fitting(n_space) } else { None };
        match fitting {
            Some(matcher) if is_known => Some(matcher),
            Some(_) => None,
            None => {
                self.place = Place::Free;
                self.marked(trigger)
            }
        }
    }

    /// Returns the grammar advanced from offset `at` to the end of the output; `None` if the output does not
    /// match.
    fn fitting(&self, at: usize) -> Option<Matcher> {
        let first = self.tokens.partition_point(|&(_, start)| start < at);
        let (_, whole) = self.tokens.split_at(first);
        // If the part starts within a token, retokenize the part's bytes of that token.
        let end = whole.first().map_or(self.text.len(), |&(_, start)| start);
        let mut tokens = self.env.tok_trie().greedy_tokenize(&self.text[at..end]);
        tokens.extend(whole.iter().map(|&(token, _)| token));
        let mut matcher = self.begin.clone();
        let n = limited(&mut matcher, PER_PART, |matcher| matcher.try_consume_tokens(&tokens)).ok()?;
        if n == tokens.len() && !matcher.is_error() {
            Some(matcher)
        } else {
            None
        }
    }

    /// Discards the first `n` bytes of the text.
    fn forget(&mut self, n: usize) {
        let n = n.min(self.text.len());
        self.text.drain(..n);
        self.tokens.retain_mut(|(_, start)| {
            let is_kept = *start >= n;
            *start = start.saturating_sub(n);
            is_kept
        });
    }
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len().max(1)).position(|window| window == part)
}

fn n_of(text: &[u8], is_it: impl Fn(u8) -> bool) -> usize {
    text.iter().position(|&b| !is_it(b)).unwrap_or(text.len())
}
