//! Attention of prompts where the CPU has no unit for tiles: each query of a unit is a lane of registers, and takes part in what is computed with each page.

use std::ops::Range;

use kernels::attention::prompt::{Prompt, PromptPage};

use super::{BLOCK_QUERIES, Operands, Sizes, State, Unit, cache_rows};
use crate::backend::cpu::ops::visible::Page;
use crate::backend::cpu::scratch::take;

/// Least queries of a unit: fewer would leave most lanes empty.
pub(super) const LEAST_QUERIES: usize = 12;

/// Floats of a thread's memory for it.
pub(super) fn floats(s: &Sizes) -> usize {
    if s.in_lanes {
        Prompt::floats(s.max_queries(), s.dk, s.dv)
    } else {
        0
    }
}

/// A thread's memory for it, if there is any.
pub(super) fn room<'a>(scratch: &mut &'a mut [f32], s: &Sizes) -> Option<Prompt<'a>> {
    let memory = take(scratch, floats(s));
    s.in_lanes.then(|| Prompt::new(memory, s.max_queries(), s.dk, s.dv))
}

impl Operands<'_> {
    /// True if the queries of a unit are lanes.
    pub(super) fn is_in_lanes(&self, unit: &Unit) -> bool {
        self.s.in_lanes && unit.tokens().len() * self.s.group() >= LEAST_QUERIES
    }

    /// Attends the unit's queries, which were set, to the pages of some entries. `next` are the key head and the page that are read after them. False if a value is not
    /// finite: whoever does not see it needs the other way.
    pub(super) fn attend_in_lanes(
        &self,
        unit: &Unit,
        entries: Range<usize>,
        next: Option<(usize, Page)>,
        state: &mut State<'_>,
        prompt: &mut Prompt<'_>,
    ) -> bool {
        prompt.clear();
        for entry in entries.clone() {
            let page = self.visible.page(entry);
            let mut seen = [0u64; BLOCK_QUERIES];
            let seen = &mut seen[..unit.tokens().len()];
            if self.look(unit, &page, seen.iter_mut()) == 0 {
                continue;
            }
            #[cfg(test)]
            super::tests::N_SCORED.set(super::tests::N_SCORED.get() + 1);
            #[cfg(test)]
            super::tests::N_IN_LANES.set(super::tests::N_IN_LANES.get() + 1);
            let of_head = (entry + 1 < entries.end).then(|| (unit.head, self.visible.page(entry + 1)));
            let next = of_head.or(next);
            let page = PromptPage {
                keys: cache_rows(&self.k, unit.head, 1, &page, next),
                values: cache_rows(&self.v, unit.head, 1, &page, next),
                seen,
                softcap: self.p.softcap,
            };
            if !prompt.attend(&page) {
                return false;
            }
        }
        let n = unit.tokens().len() * self.s.group();
        prompt.put_results(
            &mut state.max[..n],
            &mut state.sum[..n],
            &mut state.values[..n * self.s.dv],
        );
        true
    }
}
