//! Runs of characters: finds repetitions that the lexer may treat as one lexeme.
//!
//! Grammars match characters, but llguidance's lexer produces longest-match lexemes. One lexeme per character
//! is always correct, but slow for free text. `[a-z]+` may be one lexeme if no other character position of
//! the grammar can match the same text.
//!
//! The analysis computes which positions can follow each other and which pairs of positions the same text can
//! reach. It assumes that a rule may return to any of its uses, which overestimates the reachable pairs.
//! Ambiguous runs remain single characters.

use std::collections::BTreeSet;

use super::chars::CharSet;
use super::gbnf::{Node, Rules};

/// Maximum number of positions to analyze. Larger grammars use single characters.
const MAX_POSITIONS: usize = 1024;
/// Maximum number of transitions between pairs of positions.
const MAX_STEPS: usize = 4_000_000;
/// Maximum length of a fixed-length run that is expanded to single characters.
const MAX_WRITTEN_OUT: u32 = 16;
/// Maximum depth of rule references that are inlined in repetitions.
const MAX_INLINED: usize = 8;
/// Maximum number of alternatives of a repetition after inlining.
const MAX_CHOICES: usize = 1024;

/// Converts repetitions of character classes to runs, including classes among other alternatives.
pub fn find(rules: &mut Rules) {
    let bodies = rules.bodies.clone();
    for body in &mut rules.bodies {
        let old = std::mem::replace(body, Node::Seq(Vec::new()));
        *body = with_runs(old, &bodies);
    }
}

fn with_runs(node: Node, rules: &[Node]) -> Node {
    let all = |nodes: Vec<Node>| nodes.into_iter().map(|n| with_runs(n, rules)).collect();
    match node {
        Node::Seq(nodes) => Node::Seq(all(nodes)),
        Node::Alt(nodes) => Node::Alt(all(nodes)),
        Node::Repeat(inner, min, max) => {
            let mut choices = Vec::new();
            if !flatten(&inner, rules, MAX_INLINED, &mut choices) {
                return Node::Repeat(Box::new(with_runs(*inner, rules)), min, max);
            }
            let mut set = CharSet::default();
            let mut rest = Vec::new();
            for choice in choices {
                match choice {
                    Node::Char(chars) => set = set.union(&chars),
                    other => rest.push(other),
                }
            }
            if !set.is_empty() && rest.is_empty() {
                // A fixed-length repetition is expanded to one position per character, which is never
                // ambiguous.
                return match max {
                    Some(n) if n == min && n <= MAX_WRITTEN_OUT => Node::Seq(vec![Node::Char(set); n as usize]),
                    _ => Node::Run(set, min, max),
                };
            }
            if set.is_empty() || min > 1 || max.is_some() {
                return Node::Repeat(Box::new(with_runs(*inner, rules)), min, max);
            }
            // Rewrites `(C | x)*` as `(C+ | x)*`, where C is a character set.
            let mut choices = vec![Node::Run(set, 1, None)];
            choices.extend(rest.into_iter().map(|n| with_runs(n, rules)));
            Node::Repeat(Box::new(Node::Alt(choices)), min, max)
        }
        other => other,
    }
}

/// Collects the alternatives of a node, inlining rules and groups. Returns false if there are too many.
fn flatten(node: &Node, rules: &[Node], depth: usize, out: &mut Vec<Node>) -> bool {
    match node {
        Node::Alt(nodes) => nodes.iter().all(|n| flatten(n, rules, depth, out)),
        Node::Rule(number) if depth > 0 && matches!(rules[*number], Node::Char(_) | Node::Alt(_) | Node::Rule(_)) => {
            flatten(&rules[*number], rules, depth - 1, out)
        }
        other => {
            out.push(other.clone());
            out.len() <= MAX_CHOICES
        }
    }
}

/// Replaces ambiguous runs by repetitions of single characters.
pub fn split_doubtful(rules: &mut Rules) {
    let mut positions = Positions::default();
    for body in &rules.bodies {
        positions.collect(body);
    }
    let safe = if positions.sets.len() <= MAX_POSITIONS {
        positions.safe_runs(rules)
    } else {
        None
    };
    let mut next = 0;
    for body in &mut rules.bodies {
        split(body, &mut next, safe.as_deref().unwrap_or_default());
    }
}

fn split(node: &mut Node, next: &mut usize, safe: &[bool]) {
    match node {
        Node::Seq(nodes) | Node::Alt(nodes) => nodes.iter_mut().for_each(|n| split(n, next, safe)),
        Node::Repeat(inner, ..) => split(inner, next, safe),
        Node::Char(_) | Node::Token(..) => *next += 1,
        Node::Run(set, min, max) => {
            if !safe.get(*next).is_some_and(|&safe| safe) {
                *node = Node::Repeat(Box::new(Node::Char(set.clone())), *min, *max);
            }
            *next += 1;
        }
        Node::Rule(_) => {}
    }
}

type Set = BTreeSet<usize>;

/// Properties of a node: whether it can be empty, and its possible first and last positions.
#[derive(Clone, Debug, Default, PartialEq)]
struct Ends {
    nullable: bool,
    first: Set,
    last: Set,
}

/// The characters and runs of a grammar, in order of occurrence.
#[derive(Default)]
struct Positions {
    /// Character set of each position; empty for a token.
    sets: Vec<CharSet>,
    is_run: Vec<bool>,
    /// Whether each run may have any length.
    is_free: Vec<bool>,
    follow: Vec<Set>,
    /// Runs that can follow themselves other than through their own loop.
    repeated: Set,
}

impl Positions {
    fn collect(&mut self, node: &Node) {
        let (set, run) = match node {
            Node::Seq(nodes) | Node::Alt(nodes) => return nodes.iter().for_each(|n| self.collect(n)),
            Node::Repeat(inner, ..) => return self.collect(inner),
            Node::Rule(_) => return,
            Node::Token(..) => (CharSet::default(), None),
            Node::Char(set) => (set.clone(), None),
            Node::Run(set, min, max) => (set.clone(), Some(*min == 0 && max.is_none())),
        };
        self.sets.push(set);
        self.is_run.push(run.is_some());
        self.is_free.push(run == Some(true));
        self.follow.push(Set::new());
    }

    /// Returns, for each position, true if it is an unambiguous run; `None` if the analysis exceeds its
    /// limits.
    fn safe_runs(&mut self, rules: &Rules) -> Option<Vec<bool>> {
        if !self.is_run.contains(&true) {
            return None;
        }
        let mut ends = vec![Ends::default(); rules.bodies.len()];
        let mut steps = 0;
        loop {
            let n_ends: usize = ends.iter().map(|ends| 1 + ends.first.len() + ends.last.len()).sum();
            steps += n_ends + self.sets.len();
            if steps > MAX_STEPS {
                return None;
            }
            let mut next = 0;
            let new: Vec<Ends> = rules
                .bodies
                .iter()
                .map(|body| self.ends(body, &ends, &mut next))
                .collect();
            if new == ends {
                break;
            }
            ends = new;
        }
        for position in (0..self.sets.len()).filter(|&p| self.is_run[p]) {
            self.follow[position].insert(position);
        }
        let doubtful = self.doubtful(&ends[rules.root].first)?;
        let is_safe =
            |p: usize| self.is_run[p] && !doubtful.contains(&p) && (self.is_free[p] || !self.repeated.contains(&p));
        Some((0..self.sets.len()).map(is_safe).collect())
    }

    /// Computes the properties of a node whose first position is `next`, and records which positions follow
    /// each other.
    fn ends(&mut self, node: &Node, rules: &[Ends], next: &mut usize) -> Ends {
        match node {
            Node::Char(_) | Node::Token(..) | Node::Run(..) => {
                let position = Set::from([*next]);
                *next += 1;
                Ends {
                    nullable: matches!(node, Node::Run(_, 0, _)),
                    first: position.clone(),
                    last: position,
                }
            }
            Node::Rule(number) => rules[*number].clone(),
            Node::Alt(nodes) => {
                let mut all = Ends::default();
                for node in nodes {
                    let ends = self.ends(node, rules, next);
                    all.nullable |= ends.nullable;
                    all.first.extend(ends.first);
                    all.last.extend(ends.last);
                }
                all
            }
            Node::Seq(nodes) => {
                let mut all = Ends {
                    nullable: true,
                    ..Ends::default()
                };
                for node in nodes {
                    let ends = self.ends(node, rules, next);
                    self.link(&all.last, &ends.first, None);
                    if all.nullable {
                        all.first.extend(&ends.first);
                    }
                    if !ends.nullable {
                        all.last.clear();
                    }
                    all.last.extend(&ends.last);
                    all.nullable &= ends.nullable;
                }
                all
            }
            Node::Repeat(inner, min, max) => {
                // The loop around a run created by this module belongs to the run.
                let own = match &**inner {
                    Node::Alt(nodes) if matches!(nodes.first(), Some(Node::Run(..))) && *min < 2 && max.is_none() => {
                        Some(*next)
                    }
                    _ => None,
                };
                let mut ends = self.ends(inner, rules, next);
                if *max != Some(1) {
                    self.link(&ends.last, &ends.first, own);
                }
                ends.nullable |= *min == 0;
                ends
            }
        }
    }

    fn link(&mut self, last: &Set, first: &Set, own: Option<usize>) {
        for &position in last {
            self.follow[position].extend(first);
            if first.contains(&position) && own != Some(position) {
                self.repeated.insert(position);
            }
        }
    }

    /// Returns the ambiguous positions: a text that matches the position can also match a different position.
    fn doubtful(&self, first: &Set) -> Option<Set> {
        let n = self.sets.len();
        let mut seen = vec![false; n * n];
        let mut open = Vec::new();
        let mut visit = |a: &Set, b: &Set, open: &mut Vec<(usize, usize)>| {
            for (&p, &q) in a.iter().flat_map(|p| b.iter().map(move |q| (p, q))) {
                if p <= q && !std::mem::replace(&mut seen[p * n + q], true) {
                    open.push((p, q));
                } else if p > q && !std::mem::replace(&mut seen[q * n + p], true) {
                    open.push((q, p));
                }
            }
        };
        visit(first, first, &mut open);
        let (mut doubtful, mut steps) = (Set::new(), 0);
        while let Some((p, q)) = open.pop() {
            if !self.sets[p].overlaps(&self.sets[q]) {
                continue;
            }
            if p != q {
                doubtful.extend([p, q]);
            }
            let (after_p, after_q) = (&self.follow[p], &self.follow[q]);
            steps += after_p.len() * after_q.len();
            if steps > MAX_STEPS {
                return None;
            }
            visit(after_p, after_q, &mut open);
        }
        Some(doubtful)
    }
}
