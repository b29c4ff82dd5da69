//! Fusion of the norm, RoPE, and cache write of query, key, and value heads.

use kernels::GgmlType;

use super::super::ops::{Heads, MAX_HEAD, MAX_SECTIONS, Section, Step};
use super::pass::FusionPass;
use crate::graph::{Op, TensorId};

/// A section and the positions of its nodes.
struct Found {
    section: Section,
    members: Vec<usize>,
}

impl FusionPass<'_> {
    /// Returns the step of heads that begins with node `i`, a RoPE or the norm before it.
    pub(super) fn heads(&self, i: usize) -> Option<(Step, Vec<usize>)> {
        let first = self.rotated(i)?;
        let rotated = self.graph.tensor(first.section.rope?);
        let [size, _, n_tokens, _] = rotated.ne;
        let mut all = vec![first];
        for at in self.near(i + 1) {
            if all.len() == MAX_SECTIONS || all.iter().any(|found| found.members.contains(&at)) {
                continue;
            }
            let found = match self.tensor(at).op {
                Op::Rope(_) | Op::RmsNorm { .. } => self.rotated(at),
                Op::SetRows => self.stored(at, size, n_tokens),
                _ => None,
            };
            let Some(found) = found else {
                continue;
            };
            let alike = found.section.rope.is_none_or(|id| {
                let t = self.graph.tensor(id);
                t.op == rotated.op && t.src[1..] == rotated.src[1..] && t.ne[2] == n_tokens
            });
            let members: Vec<usize> = (all.iter().chain([&found])).flat_map(|f| f.members.clone()).collect();
            let last = found.section.result().and_then(|id| self.positions.get(&id)).copied();
            let comes = found
                .members
                .iter()
                .all(|&member| self.can_move_to(i, member, &members, Some(member) == last));
            if alike
                && comes
                && all
                    .iter()
                    .all(|other| self.are_disjoint(&other.section, &found.section))
            {
                all.push(found);
            }
        }
        let members: Vec<usize> = all.iter().flat_map(|f| f.members.iter().copied()).collect();
        let first_comes = all[0].members.iter().all(|&member| {
            let is_last = all[0].section.result().and_then(|id| self.positions.get(&id)) == Some(&member);
            self.can_move_to(i, member, &members, is_last)
        });
        let is_valid = all.iter().all(|found| self.may_be_computed(&found.section)) && first_comes && members.len() > 1;
        if !is_valid {
            return None;
        }
        let heads = Heads {
            rotated: all[0].section.rope?,
            sections: all.into_iter().map(|found| found.section).collect(),
        };
        Some((Step::Heads(heads), members))
    }

    /// Returns the section that node `at` rotates, or normalizes and then rotates.
    fn rotated(&self, at: usize) -> Option<Found> {
        let (id, node) = (self.nodes[at], self.tensor(at));
        let mut members = vec![at];
        let (rope, norm) = match node.op {
            Op::Rope(_) => (id, None),
            Op::RmsNorm { .. } => {
                let next = self.only_reader(id)?;
                members.push(next);
                (self.nodes[next], Some(id))
            }
            _ => return None,
        };
        let t = self.graph.tensor(rope);
        let reads_norm = norm.is_none() || t.src[0] == norm;
        if !matches!(t.op, Op::Rope(_)) || !reads_norm || t.ne[3] != 1 || t.ne[0] > MAX_HEAD {
            return None;
        }
        if let Some(weight) = norm.and_then(|norm| self.graph.tensor(norm).src[1]) {
            let weight = self.graph.tensor(weight);
            if weight.ty != GgmlType::F32 || weight.nelements() != t.ne[0] {
                return None;
            }
        }
        let mut section = Section {
            x: self.graph.tensor(norm.unwrap_or(rope)).source(0),
            n_head: 0,
            norm,
            rope: Some(rope),
            set_rows: None,
        };
        if let Some(at) = self.table_of(rope) {
            members.push(at);
            section.set_rows = Some(self.nodes[at]);
        }
        Some(Found { section, members })
    }

    /// Returns the node that writes heads to a table, if it is their only reader.
    fn table_of(&self, heads: TensorId) -> Option<usize> {
        let at = self.only_reader(heads)?;
        let (node, t) = (self.tensor(at), self.graph.tensor(heads));
        let rows = self.graph.tensor(node.src[0]?);
        let is_whole = rows.ne == [t.ne[0] * t.ne[1], t.ne[2], 1, 1] && rows.is_contiguous() && t.is_contiguous();
        let of_heads = rows.view.is_some_and(|(owner, offset)| owner == heads && offset == 0);
        let has_blocks = t.ne[0].is_multiple_of(node.ty.block_size());
        if node.op == Op::SetRows && is_whole && of_heads && has_blocks {
            Some(at)
        } else {
            None
        }
    }

    /// Returns the section of heads of this size that node `at` writes to a table.
    fn stored(&self, at: usize, size: usize, n_tokens: usize) -> Option<Found> {
        let node = self.tensor(at);
        let x = node.source(0);
        let t = self.graph.tensor(x);
        let has_heads = t.ne[0].is_multiple_of(size) && size.is_multiple_of(node.ty.block_size());
        if !has_heads || t.ne[1..] != [n_tokens, 1, 1] || t.ty != GgmlType::F32 {
            return None;
        }
        let section = Section {
            x,
            n_head: t.ne[0] / size,
            norm: None,
            rope: None,
            set_rows: Some(self.nodes[at]),
        };
        Some(Found {
            section,
            members: vec![at],
        })
    }

    /// Returns true if a section's result overlaps neither its weights, positions, and row ids, nor different
    /// heads of its input.
    fn may_be_computed(&self, section: &Section) -> bool {
        let Some(result) = section.result() else {
            return false;
        };
        let sources = [section.norm, section.rope].into_iter().flatten();
        let mut others = sources.flat_map(|id| self.graph.tensor(id).src[1..].iter().flatten().copied());
        let ids = section.set_rows.and_then(|id| self.graph.tensor(id).src[2]);
        let heads_are_apart = match section.set_rows {
            None => self.is_disjoint_or_same(result, section.x),
            Some(_) => self.is_disjoint(result, section.x),
        };
        heads_are_apart
            && others.all(|id| self.is_disjoint(result, id))
            && ids.is_none_or(|id| self.is_disjoint(result, id))
    }

    /// Returns true if neither section writes memory that the other section reads or writes.
    fn are_disjoint(&self, a: &Section, b: &Section) -> bool {
        let (Some(to_a), Some(to_b)) = (a.result(), b.result()) else {
            return false;
        };
        self.is_disjoint(to_a, to_b) && self.is_disjoint(to_a, b.x) && self.is_disjoint(to_b, a.x)
    }
}
