//! Infill sampler for fill-in-the-middle, after llama.cpp's sampler of the same name: decides whether to end
//! the infilled text.

use std::sync::Arc;

use super::sampler::TokenPieces;
use super::{Candidate, Candidates, Sampler, Token};
use crate::vocab::StringList;

/// Minimum probability of a token that continues the text.
const MIN_P: f32 = 0.2;
/// The text ends if the probability of its end exceeds 1 / (END_FACTOR * number of candidates).
const END_FACTOR: f32 = 3.0;

/// Ends the text if an end token is likely enough, or if no token is. Otherwise, if one token is a prefix of
/// another, adds the probabilities of both to the likelier one. Keeps the tokens that are likely enough.
/// Intended for use after top-k and top-p.
#[derive(Debug, Clone)]
pub struct Infill {
    texts: Arc<StringList>,
    eog: Arc<[Token]>,
    /// Token that ends the text if no token is likely enough.
    end: Option<Token>,
    /// Scratch buffers: a probability per candidate, and indices of candidates.
    p: Vec<f32>,
    by_text: Vec<usize>,
    alike: Vec<usize>,
}

impl Infill {
    /// Creates the sampler. `end` is selected if no token is likely enough; without it, the most likely token
    /// is kept.
    pub fn new(pieces: &dyn TokenPieces, end: Option<Token>) -> Infill {
        let mut texts = StringList::default();
        for token in 0..pieces.n_tokens() as Token {
            texts.push_with(|bytes| bytes.extend_from_slice(&pieces.plain_piece(token)));
        }
        Infill {
            texts: Arc::new(texts),
            eog: pieces.eog_tokens().into(),
            end,
            p: Vec::new(),
            by_text: Vec::new(),
            alike: Vec::new(),
        }
    }

    fn is_end(&self, candidate: &Candidate) -> bool {
        self.eog.contains(&candidate.token)
    }

    /// Returns true if an end token is likely enough, given the number of candidates.
    fn ends(&self, candidates: &[Candidate]) -> bool {
        let p_of = |end: bool| {
            let those = candidates.iter().filter(|c| self.is_end(c) == end);
            those.map(|c| c.p).sum::<f32>()
        };
        END_FACTOR * p_of(true) * candidates.len() as f32 > p_of(false)
    }

    /// Sets `p` to the candidates' probabilities. If the text of one candidate is a prefix of another candidate's
    /// text, the more likely candidate gets both probabilities, and the other gets 0.
    fn join(&mut self, candidates: &[Candidate]) {
        let Infill {
            texts,
            p,
            by_text,
            alike,
            ..
        } = self;
        let text = |i: usize| texts.get(candidates[i].token);
        p.clear();
        p.extend(candidates.iter().map(|c| c.p));
        by_text.clear();
        by_text.extend((0..candidates.len()).filter(|&i| !text(i).is_empty()));
        by_text.sort_unstable_by_key(|&i| (text(i), i));
        for i in 0..candidates.len() {
            if p[i] == 0.0 || text(i).is_empty() {
                continue;
            }
            let from = by_text.partition_point(|&j| text(j) < text(i));
            let begin_alike = by_text[from..].iter().take_while(|&&j| text(j).starts_with(text(i)));
            alike.clear();
            alike.extend(begin_alike.filter(|&&j| j != i && p[j] > 0.0));
            alike.sort_unstable();
            for &j in alike.iter() {
                let (to, from) = if p[j] > p[i] { (j, i) } else { (i, j) };
                p[to] += std::mem::take(&mut p[from]);
                if from == i {
                    break;
                }
            }
        }
    }

    /// Returns the minimum share of the remaining probability for a token to be kept: 1 / (number of likely
    /// tokens + 1).
    fn min_share(&self, candidates: &[Candidate], n_likely: usize) -> f32 {
        let all = candidates.iter().zip(&self.p);
        let left = all.filter(|(c, p)| **p >= MIN_P || self.is_end(c));
        left.map(|(_, p)| p).sum::<f32>() / (n_likely + 1) as f32
    }
}

impl Sampler for Infill {
    fn name(&self) -> &'static str {
        "infill"
    }

    fn apply(&mut self, candidates: &mut Candidates) {
        if candidates.max_logit() == f32::NEG_INFINITY {
            return;
        }
        candidates.softmax();
        candidates.sort_top(candidates.len());
        if self.ends(candidates.as_slice()) {
            candidates.retain_tokens(|token| self.eog.contains(&token));
            return;
        }
        self.join(candidates.as_slice());
        let data = candidates.as_slice();
        let likely = data
            .iter()
            .zip(&self.p)
            .filter(|(c, p)| **p >= MIN_P && !self.is_end(c));
        let n_likely = likely.count();
        if n_likely == 0 {
            match self.end {
                Some(end) => candidates.only(end),
                None => candidates.truncate(1),
            }
            return;
        }
        let min = self.min_share(data, n_likely).max(MIN_P);
        let is_kept = |i: &usize| self.p[*i] >= min || self.eog.contains(&data[*i].token);
        self.alike.clear();
        self.alike.extend((0..data.len()).filter(is_kept));
        candidates.pick(self.alike.iter().copied());
    }

    fn keep_to_candidates(&mut self) {
        self.end = None;
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;
    use crate::sample::{LogitBias, SamplerChain, SamplerKind, SamplerParams};

    /// Texts of the tokens; token `END` is the end.
    const TEXTS: [&str; 9] = ["a", "ab", "abc", "b", "x", "", "c", "d", "e"];
    const END: Token = 5;

    struct Words;

    impl TokenPieces for Words {
        fn n_tokens(&self) -> usize {
            TEXTS.len()
        }

        fn piece(&self, token: Token) -> Cow<'_, [u8]> {
            self.plain_piece(token)
        }

        fn plain_piece(&self, token: Token) -> Cow<'_, [u8]> {
            TEXTS[token as usize].as_bytes().into()
        }

        fn tokenize(&self, _: &str) -> Vec<Token> {
            Vec::new()
        }

        fn eog_tokens(&self) -> &[Token] {
            &[END]
        }

        fn eot(&self) -> Option<Token> {
            Some(END)
        }
    }

    fn params() -> SamplerParams {
        SamplerParams {
            samplers: vec![SamplerKind::Infill],
            ..SamplerParams::default()
        }
    }

    fn chain(params: &SamplerParams) -> SamplerChain {
        SamplerChain::new(params, TEXTS.len(), Some(&Words)).unwrap()
    }

    /// Returns the tokens that remain selectable for the given probabilities.
    fn left(mut chain: SamplerChain, p: &[(Token, f32)]) -> Vec<Token> {
        let mut logits = [f32::NEG_INFINITY; TEXTS.len()];
        p.iter().for_each(|&(token, p)| logits[token as usize] = p.ln());
        chain.sample(&logits).unwrap();
        let left = chain.candidates().as_slice().iter().filter(|c| c.p > 0.0);
        let mut left: Vec<Token> = left.map(|c| c.token).collect();
        left.sort_unstable();
        left
    }

    /// Tests six tokens that are all too unlikely.
    const FLAT: [(Token, f32); 6] = [(0, 0.17), (3, 0.17), (4, 0.17), (6, 0.17), (7, 0.17), (8, 0.15)];

    #[test]
    fn infill_ends_if_end_is_likely() {
        // Nine candidates, so the threshold is 1 in 28.
        let p = |end: f32| [(0, 0.8 - end), (3, 0.1), (4, 0.1), (END, end)];
        assert_eq!(left(chain(&params()), &p(0.04)), [END]);
        assert_eq!(left(chain(&params()), &p(0.03)), [0, END]);
    }

    #[test]
    fn infill_ends_if_no_token_is_likely() {
        assert_eq!(left(chain(&params()), &FLAT), [END]);
        assert_eq!(left(chain(&params()), &[(0, 0.15), (3, 0.18), (4, 0.67)]), [4]);
    }

    #[test]
    fn infill_does_not_select_banned_end() {
        let mut banned = params();
        let bias = f32::NEG_INFINITY;
        banned.logit_bias.push(LogitBias { token: END, bias });
        assert_eq!(left(chain(&banned), &FLAT), [0]);
        let mut infill = Infill::new(&Words, Some(END));
        infill.keep_to_candidates();
        let bound = SamplerChain::from_samplers(vec![Box::new(infill)], TEXTS.len());
        assert_eq!(
            left(bound, &FLAT),
            [0],
            "a grammar may forbid tokens that are not candidates"
        );
    }

    #[test]
    fn infill_merges_tokens_with_common_prefix() {
        let p = [(0, 0.15), (1, 0.1), (2, 0.35), (3, 0.19), (4, 0.205), (END, 0.005)];
        assert_eq!(
            left(chain(&params()), &p),
            [2, END],
            "0.15, 0.1, and 0.35 together count as 0.6"
        );
        assert_eq!(left(chain(&params()), &[(0, 0.22), (3, 0.4), (4, 0.38)]), [3, 4]);
        let p = [(0, 0.22), (1, 0.1), (3, 0.38), (4, 0.3)];
        assert_eq!(
            left(chain(&params()), &p),
            [0, 3, 4],
            "the likelier of two gets the sum"
        );
    }

    #[test]
    fn infill_with_all_tokens_masked_selects_none() {
        assert!(chain(&params()).sample(&[f32::NEG_INFINITY; TEXTS.len()]).is_err());
    }
}
