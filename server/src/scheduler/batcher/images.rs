//! Prompts with images. The rows of an image are decoded in one batch, because they may attend to each other.

use llama::parts::ImageSpan;

use super::{Batcher, Running};

/// Returns the length of the longest prefix of at most `n` tokens that does not end within an image.
pub(super) fn without_cut_image(images: &[ImageSpan], n: usize) -> usize {
    let cut = images.iter().find(|image| image.start < n && n < image.end());
    cut.map_or(n, |image| image.start)
}

impl Batcher {
    /// Returns the number of tokens up to the end of the image that the oldest prompt continues with; 0 if the prompt
    /// continues with text.
    pub(super) fn next_image(&self) -> usize {
        let prompts = self.running.iter().filter(|running| self.n_uncomputed(running) > 1);
        let oldest = prompts.min_by_key(|running| running.job.arrival);
        oldest.map_or(0, |running| {
            let from = self.n_computed(running);
            let image = running.job.images.iter().find(|image| image.end() > from);
            image
                .filter(|image| image.start <= from)
                .map_or(0, |image| image.end() - from)
        })
    }

    /// Changes the shares of prompts, oldest first, so that none ends within an image. Their sum is at most `n_max`. An
    /// image that does not fit in the rest of the batch waits for a later step, unless it exceeds `n_max`.
    pub(super) fn with_whole_images(&self, shares: Vec<(usize, usize)>, n_max: usize) -> Vec<(usize, usize)> {
        let mut parts = Vec::with_capacity(shares.len());
        let mut left = n_max;
        for (at, share) in shares.into_iter().filter(|(_, share)| *share > 0) {
            let running = &self.running[at];
            let from = self.n_computed(running);
            let end = from + share.min(left);
            let cut = running
                .job
                .images
                .iter()
                .find(|image| image.start < end && end < image.end());
            let n = match cut {
                None => end - from,
                Some(image) if image.start > from => image.start - from,
                Some(image) if image.end() - from <= left => image.end() - from,
                Some(_) if left < n_max => 0,
                Some(_) => end - from,
            };
            if n > 0 {
                left -= n;
                parts.push((at, n));
            }
        }
        parts
    }

    fn n_computed(&self, running: &Running) -> usize {
        self.memory.sequences.tokens_of(running.seq).len()
    }
}
