//! Reads the output rows of a computed graph.

use crate::sample::BestLogits;

use super::DecodeError;
use super::batch::BatchToken;
use super::outputs::{Outputs, StoredRow};
use super::runner::ComputedGraph;

impl Outputs {
    /// Reads the output rows of a ubatch: the best logits of limited tokens if the device can find them, and all
    /// logits of other tokens. Reads may stay pending until [`Outputs::complete`].
    pub fn read(
        &mut self,
        tokens: &[BatchToken],
        width: usize,
        computed: &mut ComputedGraph<'_>,
    ) -> Result<(), DecodeError> {
        let n_rows = self.n_rows(tokens);
        if n_rows == 0 {
            return Ok(());
        }
        let first = self.found.n_rows(width) as u32;
        if self.n_best == 0 {
            return Ok(self.found.read(n_rows, width, |rows| computed.read_result(rows))?);
        }
        let Some(pending) = computed.read_best(n_rows, self.n_best)? else {
            self.stored.extend((first..).take(n_rows).map(StoredRow::All));
            return Ok(self.found.read(n_rows, width, |rows| computed.read_result(rows))?);
        };
        let n_words = BestLogits::n_words(self.n_best);
        let first_best = self.best.n_rows(n_words) as u32;
        self.best.append_pending(n_rows, n_words, pending);
        for (row, token) in tokens.iter().filter(|t| t.output).enumerate() {
            if token.n_best > 0 {
                self.stored.push(StoredRow::Best(first_best + row as u32));
                continue;
            }
            let at = self.found.n_rows(width) as u32;
            self.stored.push(StoredRow::All(at));
            self.found
                .read(1, width, |values| computed.read_result_row(row, values))?;
        }
        Ok(())
    }
}
