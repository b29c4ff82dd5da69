//! Complement of a regular expression, as a regular expression.
//!
//! The expression is converted to an automaton over character classes, and the automaton is made deterministic. Then
//! accepting and rejecting states are swapped, and states are eliminated one by one until an expression remains. All
//! sizes are bounded.

use std::collections::{BTreeMap, BTreeSet};

use regex_syntax::hir::{Class, Hir, HirKind, Look};

/// Maximum number of states of each automaton.
const MAX_STATES: usize = 512;
/// Maximum number of deterministic states, which are eliminated one after the other.
const MAX_SETS: usize = 24;
/// Maximum number of classes of characters.
const MAX_CLASSES: usize = 64;
/// Maximum length of the result in bytes.
const MAX_LEN: usize = 16 << 10;
/// Last character, and the gap of surrogates.
const LAST: u32 = 0x10_FFFF;

/// Range of characters, both ends included.
type Range = (u32, u32);

/// Returns a pattern of the strings without a match of `pattern`.
pub fn complement(pattern: &str) -> Result<String, String> {
    let hir = regex_syntax::parse(pattern).map_err(|_| "unsupported pattern".to_owned())?;
    let nfa = Nfa::new(&hir)?;
    let dfa = Dfa::new(&nfa)?;
    let found = dfa.expression()?;
    Ok(match found {
        Some(text) => format!("^(?:{text})$"),
        None => return Err("the pattern excludes every string".to_owned()),
    })
}

/// Transition without a character.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Assertion {
    None,
    Start,
    End,
}

/// Automaton that finds a match anywhere in a text.
#[derive(Default)]
struct Nfa {
    empty: Vec<Vec<(Assertion, usize)>>,
    chars: Vec<Vec<(Vec<Range>, usize)>>,
    accept: usize,
}

impl Nfa {
    fn new(hir: &Hir) -> Result<Nfa, String> {
        let mut nfa = Nfa::default();
        let start = nfa.state()?;
        let begin = nfa.state()?;
        // A match can start after any text.
        nfa.chars[start].push((vec![(0, LAST)], start));
        nfa.empty[start].push((Assertion::None, begin));
        nfa.accept = nfa.add(hir, begin)?;
        Ok(nfa)
    }

    fn state(&mut self) -> Result<usize, String> {
        if self.empty.len() == MAX_STATES {
            return Err("unsupported pattern: the excluded pattern is too large".to_owned());
        }
        self.empty.push(Vec::new());
        self.chars.push(Vec::new());
        Ok(self.empty.len() - 1)
    }

    /// Adds an expression that starts at `from`, and returns its end.
    fn add(&mut self, hir: &Hir, from: usize) -> Result<usize, String> {
        match hir.kind() {
            HirKind::Empty => Ok(from),
            HirKind::Literal(literal) => {
                let text = std::str::from_utf8(&literal.0).map_err(|_| "unsupported pattern: bytes".to_owned())?;
                let mut at = from;
                for c in text.chars() {
                    at = self.class(vec![(c.into(), c.into())], at)?;
                }
                Ok(at)
            }
            HirKind::Class(class) => {
                let ranges = match class {
                    Class::Unicode(class) => class.iter().map(|r| (r.start().into(), r.end().into())).collect(),
                    Class::Bytes(class) => class.iter().map(|r| (r.start().into(), r.end().into())).collect(),
                };
                self.class(ranges, from)
            }
            HirKind::Look(look) => {
                let assertion = match look {
                    Look::Start => Assertion::Start,
                    Look::End => Assertion::End,
                    _ => return Err("unsupported pattern: an assertion within an excluded pattern".to_owned()),
                };
                let end = self.state()?;
                self.empty[from].push((assertion, end));
                Ok(end)
            }
            HirKind::Capture(capture) => self.add(&capture.sub, from),
            HirKind::Concat(parts) => parts.iter().try_fold(from, |at, part| self.add(part, at)),
            HirKind::Alternation(parts) => {
                let end = self.state()?;
                for part in parts {
                    let begin = self.state()?;
                    self.empty[from].push((Assertion::None, begin));
                    let last = self.add(part, begin)?;
                    self.empty[last].push((Assertion::None, end));
                }
                Ok(end)
            }
            HirKind::Repetition(repetition) => self.repeat(repetition, from),
        }
    }

    fn class(&mut self, ranges: Vec<Range>, from: usize) -> Result<usize, String> {
        let end = self.state()?;
        self.chars[from].push((ranges, end));
        Ok(end)
    }

    fn repeat(&mut self, repetition: &regex_syntax::hir::Repetition, from: usize) -> Result<usize, String> {
        if repetition.max.unwrap_or(repetition.min) as usize > MAX_STATES {
            return Err("unsupported pattern: the excluded pattern is too large".to_owned());
        }
        let mut at = from;
        for _ in 0..repetition.min {
            at = self.add(&repetition.sub, at)?;
        }
        let end = self.state()?;
        match repetition.max {
            None => {
                let begin = self.state()?;
                self.empty[at].push((Assertion::None, begin));
                let last = self.add(&repetition.sub, begin)?;
                self.empty[last].push((Assertion::None, begin));
                self.empty[begin].push((Assertion::None, end));
            }
            Some(max) => {
                for _ in repetition.min..max {
                    self.empty[at].push((Assertion::None, end));
                    at = self.add(&repetition.sub, at)?;
                }
                self.empty[at].push((Assertion::None, end));
            }
        }
        Ok(end)
    }

    /// Adds the states that are reachable without a character.
    fn closure(&self, states: &mut BTreeSet<usize>, allows: impl Fn(Assertion) -> bool) {
        let mut open: Vec<usize> = states.iter().copied().collect();
        while let Some(state) = open.pop() {
            for &(assertion, next) in &self.empty[state] {
                if allows(assertion) && states.insert(next) {
                    open.push(next);
                }
            }
        }
    }

    /// Returns ranges of characters that all transitions treat equally.
    fn ranges(&self) -> Result<Vec<Range>, String> {
        let all = self.chars.iter().flatten().flat_map(|(ranges, _)| ranges);
        let mut starts: BTreeSet<u32> = all.flat_map(|&(a, b)| [a, b + 1]).collect();
        starts.insert(0);
        starts.retain(|&at| at <= LAST);
        let starts: Vec<u32> = starts.into_iter().collect();
        if starts.len() > 1 << 12 {
            return Err("unsupported pattern: the excluded pattern has too many ranges".to_owned());
        }
        let ends = starts.iter().skip(1).map(|at| at - 1).chain([LAST]);
        Ok(starts.iter().copied().zip(ends).collect())
    }
}

/// Deterministic automaton of the strings without a match.
struct Dfa {
    /// Ranges of characters by target, for each state.
    next: Vec<BTreeMap<usize, Vec<Range>>>,
    accepts: Vec<bool>,
}

impl Dfa {
    fn new(nfa: &Nfa) -> Result<Dfa, String> {
        // Ranges with equal targets from every state are one class.
        let mut classes: BTreeMap<Vec<bool>, Vec<Range>> = BTreeMap::new();
        for range in nfa.ranges()? {
            let all = nfa.chars.iter().flatten();
            let is_in = |(ranges, _): &(Vec<Range>, usize)| ranges.iter().any(|&(a, b)| a <= range.0 && range.1 <= b);
            classes.entry(all.map(is_in).collect()).or_default().push(range);
        }
        if classes.len() > MAX_CLASSES {
            return Err("unsupported pattern: the excluded pattern has too many classes".to_owned());
        }
        let mut first = BTreeSet::from([0]);
        nfa.closure(&mut first, |assertion| assertion != Assertion::End);
        let mut dfa = Dfa {
            next: Vec::new(),
            accepts: Vec::new(),
        };
        let mut sets = vec![first];
        let mut i = 0;
        while i < sets.len() {
            let set = sets[i].clone();
            let mut next: BTreeMap<usize, Vec<Range>> = BTreeMap::new();
            for ranges in classes.values() {
                let mut target = BTreeSet::new();
                for (class, state) in set.iter().flat_map(|&state| &nfa.chars[state]) {
                    if class.iter().any(|&(a, b)| a <= ranges[0].0 && ranges[0].1 <= b) {
                        target.insert(*state);
                    }
                }
                nfa.closure(&mut target, |assertion| assertion == Assertion::None);
                // Behind a match no text is accepted.
                if target.contains(&nfa.accept) {
                    continue;
                }
                let at = match sets.iter().position(|known| *known == target) {
                    Some(at) => at,
                    None if sets.len() == MAX_SETS => {
                        return Err("unsupported pattern: the excluded pattern is too complex".to_owned());
                    }
                    None => {
                        sets.push(target);
                        sets.len() - 1
                    }
                };
                next.entry(at).or_default().extend(ranges);
            }
            let mut at_end = set.clone();
            nfa.closure(&mut at_end, |assertion| {
                assertion == Assertion::End || assertion == Assertion::None
            });
            dfa.accepts.push(!at_end.contains(&nfa.accept));
            dfa.next.push(next);
            i += 1;
        }
        if sets[0].contains(&nfa.accept) {
            return Err("the pattern excludes every string".to_owned());
        }
        Ok(dfa)
    }

    /// Eliminates all states; `None` if no string is accepted.
    fn expression(&self) -> Result<Option<String>, String> {
        let n = self.next.len();
        // State `n` is the only accepting one.
        let mut edges: BTreeMap<(usize, usize), String> = BTreeMap::new();
        for (from, next) in self.next.iter().enumerate() {
            for (&to, ranges) in next {
                edges.insert((from, to), class_of(ranges));
            }
            if self.accepts[from] {
                edges.insert((from, n), String::new());
            }
        }
        for state in (1..n).rev() {
            eliminate(&mut edges, state)?;
        }
        let Some(last) = edges.get(&(0, n)) else {
            return Ok(None);
        };
        Ok(Some(match edges.get(&(0, 0)) {
            Some(around) => format!("(?:{around})*(?:{last})"),
            None => last.clone(),
        }))
    }
}

/// Replaces the paths through a state by edges.
fn eliminate(edges: &mut BTreeMap<(usize, usize), String>, state: usize) -> Result<(), String> {
    let around = edges.remove(&(state, state));
    let around = around.map(|text| format!("(?:{text})*")).unwrap_or_default();
    let group = |text: &str| {
        if text.contains('|') {
            format!("(?:{text})")
        } else {
            text.to_owned()
        }
    };
    let of = |edges: &BTreeMap<(usize, usize), String>,
              is_end: fn(&(usize, usize), usize) -> bool|
     -> Vec<((usize, usize), String)> {
        let all = edges.iter().filter(|(edge, _)| is_end(edge, state));
        all.map(|(edge, text)| (*edge, text.clone())).collect()
    };
    let before = of(edges, |edge, state| edge.1 == state);
    let behind = of(edges, |edge, state| edge.0 == state);
    edges.retain(|edge, _| edge.0 != state && edge.1 != state);
    for ((from, _), head) in &before {
        for ((_, to), tail) in &behind {
            let path = format!("{}{around}{}", group(head), group(tail));
            if path.len() > MAX_LEN {
                return Err("unsupported pattern: the excluded pattern is too complex".to_owned());
            }
            match edges.get_mut(&(*from, *to)) {
                Some(other) => *other += &format!("|{path}"),
                None => _ = edges.insert((*from, *to), path),
            }
        }
    }
    Ok(())
}

/// Returns a class of characters, without the surrogates, which no text contains.
fn class_of(ranges: &[Range]) -> String {
    let mut ranges = ranges.to_vec();
    ranges.sort_unstable();
    let mut text = String::from("[");
    let mut add = |a: u32, b: u32| {
        if a <= b {
            text += &format!("\\x{{{a:x}}}-\\x{{{b:x}}}");
        }
    };
    for (a, b) in ranges {
        add(a, b.min(0xD7FF));
        add(a.max(0xE000), b);
    }
    text + "]"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns all texts of at most `max` characters of `alphabet`.
    fn texts(alphabet: &[char], max: usize) -> Vec<String> {
        let mut all = vec![String::new()];
        let mut last = all.clone();
        for _ in 0..max {
            let longer = last
                .iter()
                .flat_map(|text| alphabet.iter().map(move |c| format!("{text}{c}")));
            last = longer.collect();
            all.extend(last.clone());
        }
        all
    }

    /// Compares with a search by hand, for every short text.
    #[test]
    fn complement_accepts_exactly_other_texts() {
        type Search = fn(&str) -> bool;
        let cases: [(&str, Search); 8] = [
            (r"^(?:\.)", |text| text.starts_with('.')),
            (r"^(?:.*\.\.)", |text| text.contains("..")),
            ("^(?:^[-+.]*$)", |text| text.chars().all(|c| "-+.".contains(c))),
            ("ab", |text| text.contains("ab")),
            ("^(?:ab|b)$", |text| text == "ab" || text == "b"),
            ("a$", |text| text.ends_with('a')),
            ("^a{2,3}$", |text| text == "aa" || text == "aaa"),
            ("^(?:(a|b)+)$", |text| {
                !text.is_empty() && text.chars().all(|c| c == 'a' || c == 'b')
            }),
        ];
        for (pattern, has_match) in cases {
            let rest = complement(pattern).unwrap();
            let nfa = Nfa::new(&regex_syntax::parse(&rest).unwrap()).unwrap();
            for text in texts(&['a', 'b', '.', '-', 'é'], 4) {
                assert_eq!(nfa.finds(&text), !has_match(&text), "{pattern}: {rest}: {text:?}");
            }
        }
    }

    impl Nfa {
        fn finds(&self, text: &str) -> bool {
            let mut states = BTreeSet::from([0]);
            self.closure(&mut states, |assertion| assertion != Assertion::End);
            for c in text.chars() {
                if states.contains(&self.accept) {
                    return true;
                }
                let c = u32::from(c);
                let next = states.iter().flat_map(|&state| &self.chars[state]);
                let next = next.filter(|(class, _)| class.iter().any(|&(a, b)| a <= c && c <= b));
                states = next.map(|(_, state)| *state).collect();
                self.closure(&mut states, |assertion| assertion == Assertion::None);
            }
            self.closure(&mut states, |assertion| assertion != Assertion::Start);
            states.contains(&self.accept)
        }
    }

    #[test]
    fn complement_of_every_text_is_rejected() {
        for pattern in ["", "a*", "^", "[\\s\\S]*"] {
            assert!(complement(pattern).is_err(), "{pattern}");
        }
        assert!(complement("^(?:(a|b|c|d|e|f)*z){40}").is_err(), "too large");
    }
}
