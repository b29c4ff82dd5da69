//! Pre-tokenizer expressions compiled to deterministic automata.
//!
//! The expressions are taken from the tokenizer files of the models; `regex-syntax` parses them and provides the
//! Unicode classes. Regex libraries with linear-time matching lack one feature these expressions need: `(?!\S)` at the
//! end of an alternative, a lookahead of one character. Here a match is reported when the automaton reads the symbol
//! after the match, so this lookahead is free. Matching follows backtracking semantics: leftmost match, first
//! alternative, greedy quantifiers.
//!
//! The run time is linear in the text for every expression. Each character takes one table lookup, and text beyond a
//! match is not read again by a scan in the same state (see [`Scan`]).

use std::collections::{BTreeMap, HashMap, HashSet};

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, Hir, HirKind, Look};

/// Transition flag: a match ends before the symbol.
const MATCH: u16 = 0x8000;
/// State without outgoing transitions.
const DEAD: u16 = 0;
/// Initial state.
const START: u16 = 1;
/// Scans consult the cache of failed states once per block of `1 << BLOCK_BITS` bytes.
const BLOCK_BITS: u32 = 6;

/// Compiled expression.
#[derive(Debug)]
pub(crate) struct Dfa {
    symbols: SymbolMap,
    /// `[n_states, n_symbols + 1]`; the last column is the end of text.
    transitions: Vec<u16>,
    stride: usize,
}

impl Dfa {
    /// Compiles an expression in `regex-syntax` syntax. The only supported assertions are `$` (end of text)
    /// and `(?!\S)`.
    pub fn new(pattern: &str) -> Result<Self, String> {
        // `regex-syntax` cannot parse lookahead, so an otherwise unused assertion represents it.
        let pattern = pattern.replace(r"(?!\S)", r"\b{end-half}");
        let hir = ParserBuilder::new()
            .build()
            .parse(&pattern)
            .map_err(|e| e.to_string())?;
        let space = ParserBuilder::new().build().parse(r"\s").map_err(|e| e.to_string())?;
        let mut sets = CharSets::default();
        sets.collect(&space)?;
        sets.collect(&hir)?;
        let (symbols, masks) = SymbolMap::new(&sets)?;
        let end = 1 << symbols.n;
        let mut nfa = Nfa {
            sets: &sets,
            masks: &masks,
            space_or_end: masks[0] | end,
            end,
            insts: Vec::new(),
        };
        let matched = nfa.push(Inst::Match)?;
        let start = nfa.emit(&hir, matched)?;
        let stride = symbols.n as usize + 1;
        let transitions = determinize(&nfa.insts, start, stride)?;
        Ok(Self {
            symbols,
            transitions,
            stride,
        })
    }

    /// Creates a matcher for `text`.
    pub fn scan<'a>(&'a self, text: &'a str) -> Scan<'a> {
        Scan {
            dfa: self,
            text: text.as_bytes(),
            passed: Vec::new(),
            barren: HashSet::new(),
        }
    }
}

/// Matcher for one text. Caches (position, state) pairs from which no match was found, so that later scans
/// can stop there. Without the cache, `\s+$` on a long run of spaces followed by a letter would take
/// quadratic time.
#[derive(Debug)]
pub(crate) struct Scan<'a> {
    dfa: &'a Dfa,
    text: &'a [u8],
    passed: Vec<(usize, u16)>,
    barren: HashSet<(usize, u16)>,
}

impl Scan<'_> {
    /// Returns the end of the match at `start`, which must be a character boundary. Empty matches do not
    /// count.
    #[inline]
    pub fn match_at(&mut self, start: usize) -> Option<usize> {
        let dfa = self.dfa;
        let (mut state, mut at, mut end) = (START, start, None);
        self.passed.clear();
        loop {
            let (symbol, len) = dfa.symbols.at(self.text, at);
            let transition = dfa.transitions[usize::from(state) * dfa.stride + usize::from(symbol)];
            if transition & MATCH != 0 && at > start {
                end = Some(at);
                self.passed.clear();
            }
            state = transition & !MATCH;
            if state == DEAD {
                break;
            }
            let next = at + len;
            if (at ^ next) >> BLOCK_BITS != 0 {
                if !self.barren.is_empty() && self.barren.contains(&(next, state)) {
                    break;
                }
                self.passed.push((next, state));
            }
            at = next;
        }
        self.barren.extend(self.passed.drain(..));
        end
    }
}

/// Map from characters to symbols. Characters in the same sets of the expression share a symbol.
#[derive(Debug)]
struct SymbolMap {
    /// Number of symbols; this value itself represents the end of text.
    n: u8,
    /// Symbols of the characters below U+10000.
    low: Vec<u8>,
    /// First character and symbol of each interval from U+10000, ascending.
    high: Vec<(u32, u8)>,
}

impl SymbolMap {
    /// Builds the map and, for every set, a bit mask of its symbols.
    fn new(sets: &CharSets) -> Result<(Self, Vec<u64>), String> {
        let mut toggles: BTreeMap<u32, u64> = BTreeMap::from([(0, 0), (0x1_0000, 0)]);
        if sets.0.len() > 64 {
            return Err(format!("{} character sets; the maximum is 64", sets.0.len()));
        }
        for (i, set) in sets.0.iter().enumerate() {
            for &(first, last) in set {
                *toggles.entry(first).or_default() ^= 1 << i;
                *toggles.entry(last + 1).or_default() ^= 1 << i;
            }
        }
        let mut symbol_of: HashMap<u64, u8> = HashMap::new();
        let mut masks = vec![0_u64; sets.0.len()];
        let mut map = Self {
            n: 0,
            low: Vec::with_capacity(0x1_0000),
            high: Vec::new(),
        };
        let mut member_of = 0;
        let mut intervals = toggles.into_iter().peekable();
        while let Some((first, toggle)) = intervals.next() {
            member_of ^= toggle;
            let symbol = *symbol_of.entry(member_of).or_insert_with(|| {
                map.n += 1;
                map.n - 1
            });
            if map.n > 63 {
                return Err("more than 63 character classes".into());
            }
            for (i, mask) in masks.iter_mut().enumerate().filter(|(i, _)| member_of >> i & 1 != 0) {
                debug_assert!(i < 64);
                *mask |= 1 << symbol;
            }
            if first < 0x1_0000 {
                // The toggle at U+10000 ends the last interval below it.
                let end = intervals.peek().map_or(0x1_0000, |&(next, _)| next);
                map.low.resize(end as usize, symbol);
            } else {
                map.high.push((first, symbol));
            }
        }
        Ok((map, masks))
    }

    /// Returns the symbol and byte length of the character at `at`, a boundary of valid UTF-8.
    #[inline]
    fn at(&self, text: &[u8], at: usize) -> (u8, usize) {
        let Some(&b0) = text.get(at) else { return (self.n, 0) };
        if b0 < 0x80 {
            return (self.low[usize::from(b0)], 1);
        }
        let tail = |i: usize| u32::from(text.get(at + i).copied().unwrap_or(0) & 0x3f);
        let b0 = u32::from(b0);
        if b0 < 0xe0 {
            (self.low[((b0 & 0x1f) << 6 | tail(1)) as usize], 2)
        } else if b0 < 0xf0 {
            (self.low[((b0 & 0x0f) << 12 | tail(1) << 6 | tail(2)) as usize], 3)
        } else {
            let c = (b0 & 0x07) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3);
            let i = self.high.partition_point(|&(first, _)| first <= c);
            (self.high[i.max(1) - 1].1, 4)
        }
    }
}

/// Distinct character sets of an expression, as inclusive ranges.
#[derive(Debug, Default)]
struct CharSets(Vec<Vec<(u32, u32)>>);

impl CharSets {
    fn collect(&mut self, hir: &Hir) -> Result<(), String> {
        match hir.kind() {
            HirKind::Empty | HirKind::Look(_) => Ok(()),
            HirKind::Literal(literal) => {
                let text = std::str::from_utf8(&literal.0).map_err(|e| e.to_string())?;
                text.chars().for_each(|c| self.add(vec![(c.into(), c.into())]));
                Ok(())
            }
            HirKind::Class(class) => {
                self.add(ranges(class)?);
                Ok(())
            }
            HirKind::Repetition(repetition) => self.collect(&repetition.sub),
            HirKind::Capture(capture) => self.collect(&capture.sub),
            HirKind::Concat(subs) | HirKind::Alternation(subs) => subs.iter().try_for_each(|sub| self.collect(sub)),
        }
    }

    fn add(&mut self, set: Vec<(u32, u32)>) {
        if !self.0.contains(&set) {
            self.0.push(set);
        }
    }
}

fn ranges(class: &Class) -> Result<Vec<(u32, u32)>, String> {
    match class {
        Class::Unicode(class) => Ok(class
            .ranges()
            .iter()
            .map(|r| (r.start().into(), r.end().into()))
            .collect()),
        Class::Bytes(_) => Err("byte classes are not supported".into()),
    }
}

/// NFA instruction. Sets are bit masks of symbols; `next` is an instruction index.
#[derive(Debug, Clone, Copy)]
enum Inst {
    /// Instruction that consumes a symbol in the set.
    Take {
        set: u64,
        next: u16,
    },
    /// Continues if the next symbol (or the end of text) is in the set.
    Peek {
        set: u64,
        next: u16,
    },
    /// Instruction that tries `first`, then `second`.
    Fork {
        first: u16,
        second: u16,
    },
    Match,
}

/// NFA builder. Instructions are emitted back to front, so that the successor of each instruction already exists.
struct Nfa<'a> {
    sets: &'a CharSets,
    masks: &'a [u64],
    space_or_end: u64,
    end: u64,
    insts: Vec<Inst>,
}

impl Nfa<'_> {
    fn push(&mut self, inst: Inst) -> Result<u16, String> {
        let at = u16::try_from(self.insts.len()).map_err(|_| "expression needs more than 65535 instructions")?;
        self.insts.push(inst);
        Ok(at)
    }

    fn mask(&self, set: &[(u32, u32)]) -> u64 {
        self.sets
            .0
            .iter()
            .position(|known| known == set)
            .map_or(0, |i| self.masks[i])
    }

    /// Emits the instructions of `hir`, followed by `next`, and returns the entry point.
    fn emit(&mut self, hir: &Hir, next: u16) -> Result<u16, String> {
        match hir.kind() {
            HirKind::Empty => Ok(next),
            HirKind::Literal(literal) => {
                let text = std::str::from_utf8(&literal.0).map_err(|e| e.to_string())?;
                text.chars().rev().try_fold(next, |next, c| {
                    let set = self.mask(&[(c.into(), c.into())]);
                    self.push(Inst::Take { set, next })
                })
            }
            HirKind::Class(class) => {
                let set = self.mask(&ranges(class)?);
                self.push(Inst::Take { set, next })
            }
            HirKind::Look(Look::End) => self.push(Inst::Peek { set: self.end, next }),
            HirKind::Look(Look::WordEndHalfUnicode) => self.push(Inst::Peek {
                set: self.space_or_end,
                next,
            }),
            HirKind::Look(look) => Err(format!("assertion {look:?} is not supported")),
            HirKind::Capture(capture) => self.emit(&capture.sub, next),
            HirKind::Concat(subs) => subs.iter().rev().try_fold(next, |next, sub| self.emit(sub, next)),
            HirKind::Alternation(subs) => {
                let mut entries = subs
                    .iter()
                    .rev()
                    .map(|sub| self.emit(sub, next))
                    .collect::<Vec<_>>()
                    .into_iter();
                let last = entries.next().unwrap_or(Ok(next))?;
                entries.try_fold(last, |second, first| self.push(Inst::Fork { first: first?, second }))
            }
            HirKind::Repetition(repetition) => {
                if !repetition.greedy {
                    return Err("non-greedy quantifiers are not supported".into());
                }
                let sub = &repetition.sub;
                let mut entry = match repetition.max {
                    None => {
                        let fork = self.push(Inst::Match)?;
                        let first = self.emit(sub, fork)?;
                        self.insts[usize::from(fork)] = Inst::Fork { first, second: next };
                        fork
                    }
                    Some(max) => (repetition.min..max).try_fold(next, |entry, _| {
                        let first = self.emit(sub, entry)?;
                        self.push(Inst::Fork { first, second: next })
                    })?,
                };
                for _ in 0..repetition.min {
                    entry = self.emit(sub, entry)?;
                }
                Ok(entry)
            }
        }
    }
}

/// Subset construction. A state is the list of instruction indices by priority; forks and lookaheads are
/// resolved when the next symbol is read.
fn determinize(insts: &[Inst], start: u16, stride: usize) -> Result<Vec<u16>, String> {
    let mut states: Vec<Vec<u16>> = vec![Vec::new(), vec![start]];
    let mut number: HashMap<Vec<u16>, u16> = states.iter().cloned().zip(0..).collect();
    let mut transitions = vec![DEAD; stride];
    let mut at = usize::from(START);
    while at < states.len() {
        for symbol in 0..stride {
            let (next, matched) = step(insts, &states[at], symbol);
            let state = match number.get(&next) {
                Some(&state) => state,
                None => {
                    let state = states.len() as u16;
                    if state >= MATCH {
                        return Err("expression needs more than 32767 states".into());
                    }
                    number.insert(next.clone(), state);
                    states.push(next);
                    state
                }
            };
            transitions.push(if matched { state | MATCH } else { state });
        }
        at += 1;
    }
    Ok(transitions)
}

/// Advances `list` by one symbol. Returns the next list and whether a match ends before the symbol. A match
/// discards all entries of lower priority.
fn step(insts: &[Inst], list: &[u16], symbol: usize) -> (Vec<u16>, bool) {
    let mut seen = HashSet::new();
    let mut next = Vec::new();
    let mut stack: Vec<u16> = list.iter().rev().copied().collect();
    while let Some(at) = stack.pop() {
        if !seen.insert(at) {
            continue;
        }
        match insts[usize::from(at)] {
            Inst::Take { set, next: to } if set >> symbol & 1 != 0 && !next.contains(&to) => next.push(to),
            Inst::Peek { set, next: to } if set >> symbol & 1 != 0 => stack.push(to),
            Inst::Fork { first, second } => stack.extend([second, first]),
            Inst::Match => return (next, true),
            Inst::Take { .. } | Inst::Peek { .. } => {}
        }
    }
    (next, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all<'a>(pattern: &str, text: &'a str) -> Vec<&'a str> {
        let dfa = Dfa::new(pattern).unwrap();
        let mut scan = dfa.scan(text);
        let (mut at, mut found) = (0, Vec::new());
        while at < text.len() {
            match scan.match_at(at) {
                Some(end) => {
                    found.push(&text[at..end]);
                    at = end;
                }
                None => at += text[at..].chars().next().unwrap().len_utf8(),
            }
        }
        found
    }

    #[test]
    fn first_alternative_wins_and_quantifiers_are_greedy() {
        assert_eq!(all("a|ab", "abab"), ["a", "a"]);
        assert_eq!(all("ab|a", "aba"), ["ab", "a"]);
        assert_eq!(all("a*b|a", "aab aac"), ["aab", "a", "a"]);
        assert_eq!(all("a{1,3}", "aaaaa"), ["aaa", "aa"]);
        assert_eq!(all("(?:ab?)+c?", "aababc ab"), ["aababc", "ab"]);
        assert_eq!(all("x{2}", "xxxxx"), ["xx", "xx"]);
        assert!(Dfa::new("a+?").unwrap_err().contains("greedy"));
        assert!(Dfa::new("^a").unwrap_err().contains("assertion"));
        assert!(Dfa::new("(").is_err());
    }

    #[test]
    fn lookahead_covers_one_character() {
        assert_eq!(all(r"\s+(?!\S)|\s+", "a   b  "), ["  ", " ", "  "]);
        assert_eq!(all(r"\s+(?!\S)", " b\t\tc\u{3000}\u{a0}d"), ["\t", "\u{3000}"]);
        assert_eq!(all(r"\s+$", "  a \u{2003}"), [" \u{2003}"]);
        assert_eq!(all(r"\s{2}(?!\S)|\s", "     x"), ["  ", "  ", " "]);
    }

    #[test]
    fn classes_match_unicode() {
        assert_eq!(
            all(r"\p{L}+", "Straße Ωµ 漢字 ª𝒜x 1a"),
            ["Straße", "Ωµ", "漢字", "ª𝒜x", "a"]
        );
        assert_eq!(all(r"\p{N}", "1½Ⅷ٣x"), ["1", "½", "Ⅷ", "٣"]);
        assert_eq!(all(r"\p{M}+", "e\u{301}\u{302}"), ["\u{301}\u{302}"]);
        assert_eq!(all(r"[\p{Lo}&&[^\p{Han}]]+", "漢ひら字"), ["ひら"]);
        assert_eq!(all("(?i:'s|'ll)", "'S'LL'l"), ["'S", "'LL"]);
        assert_eq!(
            all(r"[^\s\p{L}\p{N}]+", "a+=\u{10ffff}\u{1f600}b"),
            ["+=\u{10ffff}\u{1f600}"]
        );
    }

    #[test]
    fn failed_scan_is_not_repeated() {
        let text = " ".repeat(1 << 20) + "x";
        let dfa = Dfa::new(r"\s+$").unwrap();
        let mut scan = dfa.scan(&text);
        let started = std::time::Instant::now();
        for at in 0..text.len() {
            assert_eq!(scan.match_at(at), None);
        }
        // The search takes at most 64 steps per space. Without the cache, it would take 2^39 steps in total.
        assert!(started.elapsed().as_secs() < 30, "{:?}", started.elapsed());
    }
}
