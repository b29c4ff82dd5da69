//! Sampler that enforces a grammar.

use super::{Candidates, SampleError, Sampler, Token};
use crate::grammar::{AllowedTokens, Constraint, GrammarError};

/// Removes the candidates that a grammar does not allow. Prompt tokens do not advance the grammar.
#[derive(Clone)]
pub struct Constrained {
    constraint: Constraint,
    error: Option<GrammarError>,
}

impl Constrained {
    /// Creates the sampler with the constraint in its current state.
    pub fn new(constraint: Constraint) -> Constrained {
        Constrained {
            constraint,
            error: None,
        }
    }

    /// Records the first error. After an error, no candidate remains.
    fn note(&mut self, result: Result<(), GrammarError>) {
        if let Err(error) = result {
            self.error.get_or_insert(error);
        }
    }

    /// Returns true if any token is currently allowed.
    fn is_free(&self) -> bool {
        self.error.is_none() && self.constraint.is_free()
    }

    /// Returns the allowed tokens; `None` after an error.
    fn allowed(&mut self) -> Option<AllowedTokens> {
        if self.error.is_some() {
            return None;
        }
        match self.constraint.allowed() {
            Ok(allowed) => Some(allowed),
            Err(error) => {
                self.note(Err(error));
                None
            }
        }
    }
}

impl Sampler for Constrained {
    fn name(&self) -> &'static str {
        "grammar"
    }

    fn apply(&mut self, candidates: &mut Candidates) {
        if self.is_free() {
            let ends = self.constraint.premature_ends();
            if !ends.is_empty() {
                candidates.retain_tokens(|token| !ends.contains(&token));
            }
            return;
        }
        match self.allowed() {
            Some(allowed) => candidates.retain_tokens(|token| allowed.has(token)),
            None => candidates.truncate(0),
        }
    }

    fn list(&mut self, logits: &[f32], top_k: Option<usize>, candidates: &mut Candidates) -> bool {
        if self.is_free() {
            let ends = self.constraint.premature_ends();
            match top_k {
                _ if !ends.is_empty() => candidates.fill_allowed(logits, top_k, |token| !ends.contains(&token)),
                Some(k) => candidates.fill_top_k(logits, k),
                None => candidates.fill(logits),
            }
            return true;
        }
        match self.allowed() {
            Some(allowed) => candidates.fill_allowed(logits, top_k, |token| allowed.has(token)),
            None => candidates.fill_allowed(logits, Some(1), |_| false),
        }
        true
    }

    fn accept(&mut self, token: Token) {
        if self.error.is_none() {
            let result = self.constraint.accept(token);
            self.note(result);
        }
    }

    fn accept_prompt(&mut self, _token: Token) {}

    fn is_ready(&mut self) -> bool {
        self.error.is_some() || self.constraint.is_ready()
    }

    fn reset(&mut self) {
        self.error = None;
        self.constraint.reset();
    }

    fn error(&self) -> Option<SampleError> {
        self.error.clone().map(SampleError::Grammar)
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;
    use crate::grammar::{Compiler, Grammar, Trigger};
    use crate::sample::{LogitBias, SamplerChain, SamplerParams};
    use crate::vocab::{Special, Vocab, VocabSource};

    /// Returns a vocabulary of five tokens: 0 has no text, 1 is the end, then a, b, and ab.
    fn vocab() -> Vocab {
        let source = VocabSource {
            model: "llama",
            tokens: Some(Cow::Owned(["<unk>", "</s>", "a", "b", "ab"].iter().collect())),
            scores: Some(Cow::Owned(vec![0.0; 5])),
            token_types: Some(Cow::Owned(vec![2, 3, 1, 1, 1])),
            special_ids: vec![("eos", Special::Eos, 1)],
            ..VocabSource::default()
        };
        Vocab::from_source(&source).unwrap()
    }

    fn chain(grammar: &str, params: &SamplerParams) -> SamplerChain {
        let vocab = vocab();
        let compiler = Compiler::new(&vocab, 5).unwrap();
        let constraint = compiler.compile(&Grammar::Gbnf(grammar.to_owned()), &vocab).unwrap();
        SamplerChain::new(params, 5, None).unwrap().constrained(constraint)
    }

    fn greedy() -> SamplerParams {
        SamplerParams {
            temp: 0.0,
            ..SamplerParams::default()
        }
    }

    /// Token 0 is most likely, then 1, 2, and so on.
    const LOGITS: [f32; 5] = [5.0, 4.0, 3.0, 2.0, 1.0];

    #[test]
    fn constrained_chain_selects_only_allowed_tokens() {
        let mut chain = chain("root ::= \"bab\"", &greedy());
        // The grammar does not constrain prompt tokens.
        [2, 2, 1].into_iter().for_each(|token| chain.accept_prompt(token));
        let mut text = Vec::new();
        for _ in 0..4 {
            let token = chain.sample(&LOGITS).unwrap();
            chain.accept(token);
            text.push(token);
        }
        assert_eq!(text, [3, 2, 3, 1]);
        chain.reset();
        assert_eq!(chain.sample(&LOGITS), Ok(3));
    }

    #[test]
    fn output_does_not_end_before_the_part_that_the_grammar_covers() {
        let vocab = vocab();
        let compiler = Compiler::new(&vocab, 5).unwrap();
        let constraint = compiler
            .compile(&Grammar::Gbnf("root ::= \"b\"".to_owned()), &vocab)
            .unwrap();
        let behind = |covers_rest: bool| {
            let trigger = Trigger {
                prefix: Some(("<".to_owned(), "ab".to_owned())),
                starts_in_prefix: true,
                covers_rest,
                ..Trigger::default()
            };
            let constraint = constraint.clone().lazily(trigger).unwrap();
            SamplerChain::new(&greedy(), 5, None).unwrap().constrained(constraint)
        };
        // The end (1) is the most likely token; the prefix ends with token 4.
        let logits = [0.0, 9.0, 3.0, 2.0, 4.0];
        let mut chain = behind(true);
        let mut text = Vec::new();
        for _ in 0..3 {
            let token = chain.sample(&logits).unwrap();
            chain.accept(token);
            text.push(token);
        }
        assert_eq!(text, [4, 3, 1], "prefix, document, end");
        assert_eq!(behind(false).sample(&logits), Ok(1), "no part has to follow");
    }

    #[test]
    fn cloned_chains_advance_independently() {
        let mut one = chain("root ::= \"a\" \"b\" | \"b\" \"a\"", &greedy());
        let mut two = one.clone();
        one.accept(2);
        two.accept(3);
        assert_eq!((one.sample(&LOGITS), two.sample(&LOGITS)), (Ok(3), Ok(2)));
    }

    #[test]
    fn chain_fails_if_no_token_is_allowed() {
        let ban = LogitBias {
            token: 2,
            bias: f32::NEG_INFINITY,
        };
        let banned = SamplerParams {
            logit_bias: vec![ban],
            ..greedy()
        };
        let mut chain = chain("root ::= \"a\"", &banned);
        assert!(matches!(chain.sample(&LOGITS), Err(SampleError::NoCandidate { .. })));
        // After a token that the grammar does not allow, every call fails.
        chain.accept(3);
        for _ in 0..2 {
            assert!(matches!(chain.sample(&LOGITS), Err(SampleError::Grammar(_))));
        }
    }
}
