//! Tokens in each sequence of the context, and their use as a prefix cache. Finished sequences remain cached
//! until their cells are needed; the least recently used sequence is evicted first.

use std::cmp::Reverse;
use std::sync::Arc;

use engine::sample::Token;

/// Owner of cached tokens, and scales of all LoRA adapters that the tokens were computed with. Requests only reuse
/// tokens with an equal key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CacheKey {
    /// Owner of the tokens.
    pub owner: u64,
    /// Scale of each loaded adapter.
    pub scales: Arc<[f32]>,
}

/// All sequences of a context, by id.
pub struct Sequences {
    all: Vec<Sequence>,
    clock: u64,
}

struct Sequence {
    /// Cached tokens, starting at position 0.
    tokens: Vec<Token>,
    key: CacheKey,
    /// Length of the prompt of the last request; the tokens after it were generated.
    n_prompt: usize,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Empty.
    Free,
    /// A request is using the sequence.
    Busy,
    /// Cached, with the time of last use.
    Idle(u64),
}

/// A sequence that shares a prefix with a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// Sequence id.
    pub seq: usize,
    /// Length of the common prefix in tokens.
    pub n_common: usize,
    /// True if no request is using the sequence.
    pub is_idle: bool,
}

impl Sequences {
    /// Creates `n` empty sequences.
    pub fn new(n: usize) -> Sequences {
        let free = || Sequence {
            tokens: Vec::new(),
            key: CacheKey::default(),
            n_prompt: 0,
            state: State::Free,
        };
        Sequences {
            all: (0..n).map(|_| free()).collect(),
            clock: 0,
        }
    }

    /// Returns the number of sequences.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns true if a request is using the sequence.
    pub fn is_busy(&self, seq: usize) -> bool {
        self.all[seq].state == State::Busy
    }

    /// Returns the owner of a sequence; `None` if the sequence is free.
    pub fn owner_of(&self, seq: usize) -> Option<u64> {
        let sequence = &self.all[seq];
        (sequence.state != State::Free).then_some(sequence.key.owner)
    }

    /// Returns the key of the last request in a sequence.
    pub fn key_of(&self, seq: usize) -> &CacheKey {
        &self.all[seq].key
    }

    /// Returns the length of the last prompt in a sequence.
    pub fn n_prompt_of(&self, seq: usize) -> usize {
        self.all[seq].n_prompt
    }

    /// Returns the tokens in a sequence.
    pub fn tokens_of(&self, seq: usize) -> &[Token] {
        &self.all[seq].tokens
    }

    /// Records computed tokens.
    pub fn extend(&mut self, seq: usize, tokens: &[Token]) {
        self.all[seq].tokens.extend_from_slice(tokens);
    }

    /// Records that a sequence was truncated.
    pub fn truncate(&mut self, seq: usize, n: usize) {
        self.all[seq].tokens.truncate(n);
    }

    /// Records that `to` shares all tokens of `from`.
    pub fn copy(&mut self, from: usize, to: usize) {
        self.all[to].tokens = self.all[from].tokens.clone();
    }

    /// Returns the sequence of `key` with the longest common prefix. Among equals, idle sequences win, then
    /// sequences with few other tokens.
    pub fn best_match(&self, prompt: &[Token], key: &CacheKey) -> Option<Match> {
        let reusable = self.all.iter().enumerate().filter(|(_, s)| s.key == *key);
        let matched = reusable.map(|(seq, s)| Match {
            seq,
            n_common: s.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count(),
            is_idle: matches!(s.state, State::Idle(_)),
        });
        let n_held = |seq: usize| self.all[seq].tokens.len();
        matched
            .filter(|m| m.n_common > 0)
            .max_by_key(|m| (m.n_common, m.is_idle, Reverse(n_held(m.seq)), Reverse(m.seq)))
    }

    /// Returns an empty sequence.
    pub fn free(&self) -> Option<usize> {
        self.all.iter().position(|s| s.state == State::Free)
    }

    /// Returns the least recently used idle sequence, except `but`.
    pub fn oldest_idle(&self, but: Option<usize>) -> Option<usize> {
        let idle = self.all.iter().enumerate().filter_map(|(seq, s)| match s.state {
            State::Idle(at) if Some(seq) != but => Some((at, seq)),
            _ => None,
        });
        idle.min().map(|(_, seq)| seq)
    }

    /// Marks a sequence as in use by a request with this key and a prompt of `n_prompt` tokens.
    pub fn take(&mut self, seq: usize, key: CacheKey, n_prompt: usize) {
        let sequence = &mut self.all[seq];
        (sequence.key, sequence.n_prompt) = (key, n_prompt);
        sequence.state = State::Busy;
    }

    /// Makes an idle sequence the first to be evicted, because its conversation continues in another one.
    pub fn supersede(&mut self, seq: usize) {
        self.all[seq].state = State::Idle(0);
    }

    /// Marks a sequence as cached, or as free if it is empty.
    pub fn release(&mut self, seq: usize) {
        self.clock += 1;
        self.all[seq].state = if self.all[seq].tokens.is_empty() {
            State::Free
        } else {
            State::Idle(self.clock)
        };
    }

    /// Marks a sequence as empty.
    pub fn clear(&mut self, seq: usize) {
        self.all[seq].tokens.clear();
        self.all[seq].state = State::Free;
    }

    /// Returns the total tokens of sequences in use; shared prefixes count once per sequence.
    pub fn n_busy_tokens(&self) -> usize {
        let busy = self.all.iter().filter(|s| s.state == State::Busy);
        busy.map(|s| s.tokens.len()).sum()
    }

    /// Returns the numbers of used and of cached sequences.
    pub fn n_busy_and_idle(&self) -> (usize, usize) {
        let n_free = self.all.iter().filter(|s| s.state == State::Free).count();
        let n_busy = self.all.iter().filter(|s| s.state == State::Busy).count();
        (n_busy, self.all.len() - n_free - n_busy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(texts: &[&[Token]]) -> Sequences {
        let mut all = Sequences::new(texts.len() + 1);
        for (seq, text) in texts.iter().enumerate() {
            all.take(seq, CacheKey::default(), text.len());
            all.extend(seq, text);
        }
        all
    }

    #[test]
    fn best_match_prefers_longest_then_idle() {
        let mut all = with(&[&[1, 2, 3], &[1, 2, 3, 4], &[1, 2, 3], &[9]]);
        let found = |all: &Sequences, prompt: &[Token]| {
            all.best_match(prompt, &CacheKey::default())
                .map(|m| (m.seq, m.n_common))
        };
        assert_eq!(found(&all, &[1, 2, 3, 4, 5]), Some((1, 4)));
        assert_eq!(found(&all, &[1, 2, 3]), Some((0, 3)));
        all.release(2);
        assert_eq!(found(&all, &[1, 2, 3]), Some((2, 3)));
        assert_eq!(found(&all, &[7]), None);
        all.clear(1);
        assert_eq!(found(&all, &[1, 2, 3, 4, 5]), Some((2, 3)));
        let other_keys = [(1, Vec::new()), (0, vec![0.5])].map(|(owner, scales)| CacheKey {
            owner,
            scales: scales.into(),
        });
        for key in other_keys {
            assert_eq!(all.best_match(&[1, 2, 3], &key), None, "{key:?}");
        }
    }

    #[test]
    fn oldest_idle_returns_least_recently_used() {
        let mut all = with(&[&[1], &[2], &[3]]);
        assert_eq!((all.oldest_idle(None), all.n_busy_and_idle()), (None, (3, 0)));
        [1, 0, 2].into_iter().for_each(|seq| all.release(seq));
        assert_eq!((all.oldest_idle(None), all.oldest_idle(Some(1))), (Some(1), Some(0)));
        all.take(1, CacheKey::default(), 1);
        all.release(1);
        assert_eq!(all.oldest_idle(None), Some(0));
        all.supersede(2);
        assert_eq!(all.oldest_idle(None), Some(2));
        assert_eq!((all.free(), all.n_busy_and_idle()), (Some(3), (0, 3)));
        // An empty sequence is not cached.
        all.take(3, CacheKey::default(), 1);
        all.release(3);
        assert_eq!(all.free(), Some(3));
    }
}
