//! Runs of characters: which repetitions a lexer may take as one piece.
//!
//! A grammar here is about characters, while the parser behind it takes lexemes, of which the longest counts. One lexeme for each character is right
//! for any grammar, but slow where whole strings are free. `[a-z]+` may be one lexeme where no text can have another character of the grammar in the place of one of
//! its own. That is looked up in the positions of the grammar: which of them can follow which, and which can be reached by the same text. Rules are taken to return to all
//! places that name them, so that more seems possible than is; runs for which that leaves a doubt stay single characters.

use std::collections::BTreeSet;

use super::chars::CharSet;
use super::gbnf::{Node, Rules};

/// Most positions of a grammar that is looked at; larger ones keep single characters.
const MAX_POSITIONS: usize = 1024;
/// Most steps from pairs of positions to others.
const MAX_STEPS: usize = 4_000_000;
/// Characters of a fixed number that are written out one by one.
const MAX_WRITTEN_OUT: u32 = 16;
/// Rules within rules that are written out where they are repeated.
const MAX_INLINED: usize = 8;

/// Makes runs where a class is repeated, alone or as a choice.
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
            flatten(&inner, rules, MAX_INLINED, &mut choices);
            let mut set = CharSet::default();
            let mut rest = Vec::new();
            for choice in choices {
                match choice {
                    Node::Char(chars) => set = set.union(&chars),
                    other => rest.push(other),
                }
            }
            if !set.is_empty() && rest.is_empty() {
                // As many positions as characters: what follows a fixed number of them is in no doubt.
                return match max {
                    Some(n) if n == min && n <= MAX_WRITTEN_OUT => Node::Seq(vec![Node::Char(set); n as usize]),
                    _ => Node::Run(set, min, max),
                };
            }
            if set.is_empty() || min > 1 || max.is_some() {
                return Node::Repeat(Box::new(with_runs(*inner, rules)), min, max);
            }
            // (C | x)* is (C+ | x)*.
            let mut choices = vec![Node::Run(set, 1, None)];
            choices.extend(rest.into_iter().map(|n| with_runs(n, rules)));
            Node::Repeat(Box::new(Node::Alt(choices)), min, max)
        }
        other => other,
    }
}

/// The choices that a node is, those of rules and groups written out.
fn flatten(node: &Node, rules: &[Node], depth: usize, out: &mut Vec<Node>) {
    match node {
        Node::Alt(nodes) => nodes.iter().for_each(|n| flatten(n, rules, depth, out)),
        Node::Rule(number) if depth > 0 && matches!(rules[*number], Node::Char(_) | Node::Alt(_) | Node::Rule(_)) => {
            flatten(&rules[*number], rules, depth - 1, out);
        }
        other => out.push(other.clone()),
    }
}

/// Replaces the runs that may not be taken as one piece by repetitions of single characters.
pub fn split_doubtful(rules: &mut Rules) {
    let mut positions = Positions::default();
    for body in &rules.bodies {
        positions.collect(body);
    }
    let safe = match positions.sets.len() <= MAX_POSITIONS {
        true => positions.safe_runs(rules),
        false => None,
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

/// What is known of a part of a grammar: whether it can be empty, and with which positions it can begin and end.
#[derive(Clone, Debug, Default, PartialEq)]
struct Ends {
    nullable: bool,
    first: Set,
    last: Set,
}

/// The characters and runs of a grammar, in order of the text.
#[derive(Default)]
struct Positions {
    /// Empty for a token.
    sets: Vec<CharSet>,
    is_run: Vec<bool>,
    /// Runs that say nothing of their length.
    is_free: Vec<bool>,
    follow: Vec<Set>,
    /// Runs that may follow themselves otherwise than by their own loop.
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

    /// Which positions are runs that may be one piece; `None` if it would take too long to find out.
    fn safe_runs(&mut self, rules: &Rules) -> Option<Vec<bool>> {
        if !self.is_run.contains(&true) {
            return None;
        }
        let mut ends = vec![Ends::default(); rules.bodies.len()];
        loop {
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

    /// The ends of a node, whose first position has the number `next`. Notes what follows what.
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
                // The loop around a run of our own making is the run's own.
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

    /// Positions in whose place the same text may have others.
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
