//! Which sequences of the context hold which tokens, and which of them are in use. What finished sequences hold stays until its place is needed, so
//! that later prompts can begin with it; who has waited longest goes first.

use engine::sample::Token;

/// All sequences of a context by number.
pub struct Sequences {
    all: Vec<Sequence>,
    clock: u64,
}

struct Sequence {
    /// The tokens in memory, from position 0.
    tokens: Vec<Token>,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Empty.
    Free,
    /// A request works on it.
    Busy,
    /// It is kept for what it holds; used last then.
    Idle(u64),
}

/// A sequence that begins as a prompt does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// The sequence.
    pub seq: usize,
    /// Tokens that both begin with.
    pub n_common: usize,
    /// No request works on it.
    pub is_idle: bool,
}

impl Sequences {
    /// So many empty ones.
    pub fn new(n: usize) -> Sequences {
        let free = || Sequence {
            tokens: Vec::new(),
            state: State::Free,
        };
        Sequences {
            all: (0..n).map(|_| free()).collect(),
            clock: 0,
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// True if a request works on it.
    pub fn is_busy(&self, seq: usize) -> bool {
        self.all[seq].state == State::Busy
    }

    /// The tokens that a sequence holds.
    pub fn held(&self, seq: usize) -> &[Token] {
        &self.all[seq].tokens
    }

    /// Notes that tokens were computed.
    pub fn extend(&mut self, seq: usize, tokens: &[Token]) {
        self.all[seq].tokens.extend_from_slice(tokens);
    }

    /// Notes that a sequence was cut.
    pub fn truncate(&mut self, seq: usize, n: usize) {
        self.all[seq].tokens.truncate(n);
    }

    /// Notes that `to` shares what `from` holds.
    pub fn copy(&mut self, from: usize, to: usize) {
        self.all[to].tokens = self.all[from].tokens.clone();
    }

    /// The sequence with the longest common beginning; of equals one that is idle.
    pub fn best_match(&self, prompt: &[Token]) -> Option<Match> {
        let matched = self.all.iter().enumerate().map(|(seq, s)| Match {
            seq,
            n_common: s.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count(),
            is_idle: matches!(s.state, State::Idle(_)),
        });
        matched
            .filter(|m| m.n_common > 0)
            .max_by_key(|m| (m.n_common, m.is_idle, std::cmp::Reverse(m.seq)))
    }

    /// An empty sequence.
    pub fn free(&self) -> Option<usize> {
        self.all.iter().position(|s| s.state == State::Free)
    }

    /// The idle sequence that was not used for longest, other than `but`.
    pub fn oldest_idle(&self, but: Option<usize>) -> Option<usize> {
        let idle = self.all.iter().enumerate().filter_map(|(seq, s)| match s.state {
            State::Idle(at) if Some(seq) != but => Some((at, seq)),
            _ => None,
        });
        idle.min().map(|(_, seq)| seq)
    }

    /// A request works on it from now on.
    pub fn take(&mut self, seq: usize) {
        self.all[seq].state = State::Busy;
    }

    /// No request works on it any more: it is kept for what it holds, if that is anything.
    pub fn leave(&mut self, seq: usize) {
        self.clock += 1;
        self.all[seq].state = match self.all[seq].tokens.is_empty() {
            true => State::Free,
            false => State::Idle(self.clock),
        };
    }

    /// It is empty.
    pub fn clear(&mut self, seq: usize) {
        self.all[seq].tokens.clear();
        self.all[seq].state = State::Free;
    }

    /// Tokens of those that are in use, what they share counted for each.
    pub fn n_busy_tokens(&self) -> usize {
        let busy = self.all.iter().filter(|s| s.state == State::Busy);
        busy.map(|s| s.tokens.len()).sum()
    }

    /// How many are in use, and how many are kept.
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
            all.take(seq);
            all.extend(seq, text);
        }
        all
    }

    #[test]
    fn the_longest_beginning_is_found_and_idle_ones_are_preferred() {
        let mut all = with(&[&[1, 2, 3], &[1, 2, 3, 4], &[1, 2, 3], &[9]]);
        let found = |all: &Sequences, prompt: &[Token]| all.best_match(prompt).map(|m| (m.seq, m.n_common));
        assert_eq!(found(&all, &[1, 2, 3, 4, 5]), Some((1, 4)));
        assert_eq!(found(&all, &[1, 2, 3]), Some((0, 3)));
        all.leave(2);
        assert_eq!(found(&all, &[1, 2, 3]), Some((2, 3)));
        assert_eq!(found(&all, &[7]), None);
        all.clear(1);
        assert_eq!(found(&all, &[1, 2, 3, 4, 5]), Some((2, 3)));
    }

    #[test]
    fn who_was_left_first_is_the_oldest() {
        let mut all = with(&[&[1], &[2], &[3]]);
        assert_eq!((all.oldest_idle(None), all.n_busy_and_idle()), (None, (3, 0)));
        [1, 0, 2].into_iter().for_each(|seq| all.leave(seq));
        assert_eq!((all.oldest_idle(None), all.oldest_idle(Some(1))), (Some(1), Some(0)));
        all.take(1);
        all.leave(1);
        assert_eq!(all.oldest_idle(None), Some(0));
        assert_eq!((all.free(), all.n_busy_and_idle()), (Some(3), (0, 3)));
        // Nothing is kept for nothing.
        all.take(3);
        all.leave(3);
        assert_eq!(all.free(), Some(3));
    }
}
