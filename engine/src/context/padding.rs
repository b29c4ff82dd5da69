//! Pads small ubatches to powers of two, so that a few captured CUDA graphs serve all sizes.

use crate::backend::DeviceKind;
use crate::model::Model;

use super::batch::BatchToken;

/// Largest padded ubatch.
const MAX_PADDED: usize = 32;

/// Returns true if GPUs compute all layers of a model. CPUs capture no graphs, and padding would cost time there.
pub(super) fn runs_on_gpus(model: &Model) -> bool {
    let (base, placement) = (model.base(), model.placement());
    (0..base.n_layer()).all(|layer| placement.kv_device(layer).kind() == DeviceKind::Gpu)
}

/// A ubatch with copies of its last token. The copies are stored in no cell, and their results are not read.
pub(super) struct Padding {
    is_on: bool,
    tokens: Vec<BatchToken>,
}

impl Padding {
    /// Creates the padding of ubatches. Without `is_on`, ubatches are not padded.
    pub fn new(is_on: bool) -> Padding {
        Padding {
            is_on,
            tokens: Vec::with_capacity(MAX_PADDED),
        }
    }

    /// Pads a ubatch to the next power of two, up to `most` tokens. Returns false if the ubatch is not padded.
    pub fn pad(&mut self, tokens: &[BatchToken], most: usize) -> bool {
        let n = tokens.len().next_power_of_two();
        if !self.is_on || n > most.min(MAX_PADDED) {
            return false;
        }
        let Some(&last) = tokens.last() else { return false };
        let all_have_output = tokens.iter().all(|token| token.output);
        self.tokens.clear();
        self.tokens.extend_from_slice(tokens);
        let copy = BatchToken {
            output: all_have_output,
            ..last
        };
        self.tokens.resize(n, copy);
        true
    }

    /// Returns the ubatch that was padded last.
    pub fn tokens(&self) -> &[BatchToken] {
        &self.tokens
    }
}

#[cfg(test)]
mod tests {
    use super::super::batch::{AxisPosition, SeqSet};
    use super::*;

    fn token(pos: i32, output: bool) -> BatchToken {
        BatchToken {
            token: 7,
            pos,
            seqs: SeqSet::one(0),
            output,
            n_best: 0,
            media: None,
            axes: AxisPosition::default(),
        }
    }

    #[test]
    fn ubatch_is_padded_to_a_power_of_two_with_its_last_token() {
        let mut padding = Padding::new(true);
        let tokens: Vec<BatchToken> = (0..5).map(|pos| token(pos, true)).collect();
        assert!(padding.pad(&tokens, 512));
        assert_eq!(padding.tokens()[..5], tokens);
        assert_eq!(padding.tokens()[5..], [token(4, true); 3]);
        // The results of a prompt are the results of its last token.
        let prompt: Vec<BatchToken> = (0..3).map(|pos| token(pos, pos == 2)).collect();
        assert!(padding.pad(&prompt, 512));
        assert_eq!(padding.tokens()[3..], [token(2, false)]);
    }

    #[test]
    fn ubatch_beyond_the_limits_is_not_padded() {
        let tokens: Vec<BatchToken> = (0..33).map(|pos| token(pos, true)).collect();
        for (n, is_on, most, is_padded) in [
            (33, true, 512, false),
            (17, true, 512, true),
            (17, true, 20, false),
            (17, false, 512, false),
            (0, true, 512, false),
        ] {
            let mut padding = Padding::new(is_on);
            assert_eq!(padding.pad(&tokens[..n], most), is_padded, "{n} tokens");
        }
    }
}
