//! Only tokens with which a text keeps to its grammar.

use super::{Candidates, SampleError, Sampler, Token};
use crate::grammar::{Allowed, Constraint, GrammarError};

/// Removes the candidates that a grammar does not allow. Tokens of a prompt are no part of the text that it is about.
#[derive(Clone)]
pub struct Constrained {
    constraint: Constraint,
    fault: Option<GrammarError>,
}

impl Constrained {
    /// From the beginning of a text on, or from where the constraint is.
    pub fn new(constraint: Constraint) -> Constrained {
        Constrained {
            constraint,
            fault: None,
        }
    }

    /// Notes the first error; after it no candidate is left.
    fn note(&mut self, result: Result<(), GrammarError>) {
        if let Err(error) = result {
            self.fault.get_or_insert(error);
        }
    }

    /// True where nothing is asked of the next token.
    fn is_free(&self) -> bool {
        self.fault.is_none() && self.constraint.is_free()
    }

    /// The tokens that may come next; none after an error.
    fn allowed(&mut self) -> Option<Allowed> {
        if self.fault.is_some() {
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
            return;
        }
        match self.allowed() {
            Some(allowed) => candidates.retain_tokens(|token| allowed.has(token)),
            None => candidates.truncate(0),
        }
    }

    fn list(&mut self, logits: &[f32], top_k: Option<usize>, candidates: &mut Candidates) -> bool {
        if self.is_free() {
            match top_k {
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
        if self.fault.is_none() {
            let result = self.constraint.accept(token);
            self.note(result);
        }
    }

    fn accept_prompt(&mut self, _token: Token) {}

    fn reset(&mut self) {
        self.fault = None;
        let result = self.constraint.reset();
        self.note(result);
    }

    fn fault(&self) -> Option<SampleError> {
        self.fault.clone().map(SampleError::Grammar)
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;
    use crate::grammar::{Compiler, Grammar};
    use crate::sample::{Chain, LogitBias, SamplerParams};
    use crate::vocab::{Special, Vocab, VocabSource};

    /// Tokens: 0 no text, 1 the end, then a, b and ab.
    fn chain(grammar: &str, params: &SamplerParams) -> Chain {
        let source = VocabSource {
            model: "llama",
            tokens: Some(Cow::Owned(["<unk>", "</s>", "a", "b", "ab"].iter().collect())),
            scores: Some(Cow::Owned(vec![0.0; 5])),
            token_types: Some(Cow::Owned(vec![2, 3, 1, 1, 1])),
            special_ids: vec![("eos", Special::Eos, 1)],
            ..VocabSource::default()
        };
        let vocab = Vocab::from_source(&source).unwrap();
        let compiler = Compiler::new(&vocab, 5).unwrap();
        let constraint = compiler.compile(&Grammar::Gbnf(grammar.to_owned()), &vocab).unwrap();
        Chain::new(params, 5, None).unwrap().constrained(constraint)
    }

    fn greedy() -> SamplerParams {
        SamplerParams {
            temp: 0.0,
            ..SamplerParams::default()
        }
    }

    /// The most likely token first: 0, 1, 2 ...
    const LOGITS: [f32; 5] = [5.0, 4.0, 3.0, 2.0, 1.0];

    #[test]
    fn tokens_keep_to_the_grammar_whatever_is_likely() {
        let mut chain = chain("root ::= \"bab\"", &greedy());
        // Of the prompt nothing is asked.
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
    fn copies_of_a_chain_have_texts_of_their_own() {
        let mut one = chain("root ::= \"a\" \"b\" | \"b\" \"a\"", &greedy());
        let mut two = one.clone();
        one.accept(2);
        two.accept(3);
        assert_eq!((one.sample(&LOGITS), two.sample(&LOGITS)), (Ok(3), Ok(2)));
    }

    #[test]
    fn where_nothing_is_allowed_nothing_is_sampled() {
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
        // A token that the grammar does not have is never forgotten.
        chain.accept(3);
        for _ in 0..2 {
            assert!(matches!(chain.sample(&LOGITS), Err(SampleError::Grammar(_))));
        }
    }
}
