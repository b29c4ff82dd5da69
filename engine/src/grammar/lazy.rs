//! Grammars of parts of a text, such as calls of functions: each part begins with a mark, and ends where the grammar is complete. What stands around parts is free.

use std::sync::Arc;

use llguidance::Matcher;
use llguidance::toktrie::{TokEnv, TokTrie};

use crate::vocab::Token;

/// Where a text begins to keep to a grammar.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trigger {
    /// Marks, each of which begins a part. The grammar is about the mark and what follows; where it does not fit what has come, the mark is none.
    pub marks: Vec<String>,
    /// A part may also begin the text, or follow another part, without a mark. What fits the grammar there is known to be one by these, as soon as one of
    /// them has come, and something behind it.
    pub names: Vec<String>,
    /// What the text may begin with that is no part of it, such as reasoning: the tags around it.
    pub aside: Option<(String, String)>,
    /// The text begins behind the first of those tags.
    pub is_aside: bool,
}

/// What may stand between parts.
const SEPARATORS: &[u8] = b",; \n\t\r";
/// Bytes within which a part without a mark has to be known as one.
const MAX_HEAD: usize = 1024;

/// Waits for a part of a text.
#[derive(Clone)]
pub(super) struct Lazy {
    trigger: Arc<Trigger>,
    /// The grammar at the beginning of a part.
    begin: Matcher,
    env: TokEnv,
    place: Place,
    /// The latest bytes of the text, as far as a part may begin in them.
    text: Vec<u8>,
    /// Tokens that lie in them, and where.
    tokens: Vec<(Token, usize)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Nothing but white space has come.
    Start,
    /// Between the tags.
    Aside,
    /// Where a part may begin without a mark.
    Head,
    /// Where it begins with one.
    Free,
    /// Within a part.
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

    /// True outside of parts.
    pub fn is_free(&self) -> bool {
        self.place != Place::Part
    }

    /// Back to the beginning of the text.
    pub fn reset(&mut self) {
        self.go_on(if self.trigger.is_aside {
            Place::Aside
        } else {
            Place::Start
        });
    }

    /// Behind a part.
    pub fn release(&mut self) {
        self.go_on(Place::Head);
    }

    fn go_on(&mut self, place: Place) {
        self.place = place;
        self.text.clear();
        self.tokens.clear();
    }

    /// Takes the next token of what is free; the grammar behind it, if a part has begun.
    pub fn push(&mut self, token: Token) -> Option<Matcher> {
        self.tokens.push((token, self.text.len()));
        let bytes = self.env.tok_trie().token(token);
        // Special tokens are known by their names.
        let bytes = bytes.strip_prefix(&[TokTrie::SPECIAL_TOKEN_MARKER]).unwrap_or(bytes);
        self.text.extend_from_slice(bytes);
        let trigger = self.trigger.clone();
        if self.place == Place::Start && !self.begins(&trigger) {
            return None;
        }
        if let (Place::Aside, Some((_, close))) = (self.place, &trigger.aside) {
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

    /// True as soon as it is known what the text begins with.
    fn begins(&mut self, trigger: &Trigger) -> bool {
        self.place = Place::Head;
        let n_space = n_of(&self.text, |b| b.is_ascii_whitespace());
        if let Some((open, _)) = &trigger.aside {
            let begun = &self.text[n_space..];
            if begun.starts_with(open.as_bytes()) {
                self.forget(n_space + open.len());
                self.place = Place::Aside;
            } else if open.as_bytes().starts_with(begun) && self.text.len() < MAX_HEAD {
                self.place = Place::Start;
                return false;
            }
        }
        true
    }

    /// The grammar behind what has come from a mark on.
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

    /// The grammar behind a part that has no mark.
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
        match may_be.then(|| self.fitting(n_space)).flatten() {
            Some(matcher) => is_known.then_some(matcher),
            None => {
                self.place = Place::Free;
                self.marked(trigger)
            }
        }
    }

    /// The grammar behind what has come from a place on; `None` if it does not fit.
    fn fitting(&self, at: usize) -> Option<Matcher> {
        let first = self.tokens.partition_point(|&(_, start)| start < at);
        let (_, whole) = self.tokens.split_at(first);
        // What begins within a token is the same text by other tokens.
        let end = whole.first().map_or(self.text.len(), |&(_, start)| start);
        let mut tokens = self.env.tok_trie().greedy_tokenize(&self.text[at..end]);
        tokens.extend(whole.iter().map(|&(token, _)| token));
        let mut matcher = self.begin.clone();
        let n = matcher.try_consume_tokens(&tokens).ok()?;
        (n == tokens.len() && !matcher.is_error()).then_some(matcher)
    }

    /// Forgets the first bytes.
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
