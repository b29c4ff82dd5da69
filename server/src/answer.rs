//! What becomes of requests, as interfaces tell it: pieces of text by choice, reasoning told from answers, and counts.

use std::collections::VecDeque;
use std::time::Duration;

use engine::speculate::Drafted;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::api::{ApiError, ApiResult};
use crate::parser::OutputParser;
use crate::scheduler::{Event, Finish, PromptDone, TokenLogprob};
use crate::tools::{Call, Said};

/// One or several prompts under way, told one after the other.
pub struct Answer {
    prompts: VecDeque<Asked>,
    parsers: Vec<OutputParser>,
    /// By choice.
    n_calls: Vec<usize>,
    /// Tokens told of so far, by choice; how many there were is known at the end.
    n_told: Vec<usize>,
    pieces: VecDeque<Piece>,
    /// The number of the first choice of the prompt that is told.
    first: usize,
    n_open: usize,
    /// What was counted so far.
    pub usage: Usage,
}

struct Asked {
    events: UnboundedReceiver<Event>,
    n: usize,
}

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// The prompt with this choice for its first is computed.
    Prompt {
        /// The number of its first choice.
        choice: usize,
        /// What was told of it.
        done: PromptDone,
    },
    /// Text.
    Text {
        /// Which choice.
        choice: usize,
        /// What is thought, empty if none is.
        reasoning: String,
        /// What is said, empty if nothing is.
        content: String,
        /// The token that it came with, if probabilities were asked for.
        logprob: Option<TokenLogprob>,
    },
    /// A function is called, whose arguments follow.
    Call {
        /// In which choice.
        choice: usize,
        /// The number of the call in its choice.
        index: usize,
        /// The function.
        name: String,
    },
    /// A piece of the arguments of a call.
    Arguments {
        /// In which choice.
        choice: usize,
        /// The number of the call in its choice.
        index: usize,
        /// What is added to them.
        text: String,
    },
    /// A choice is over.
    End {
        /// Which.
        choice: usize,
        /// Why.
        finish: Finish,
        /// Functions that it called.
        n_calls: usize,
    },
    /// It failed: one sentence. Nothing follows.
    Failed(String),
}

/// Counts and times of all prompts together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Usage {
    /// Tokens of prompts.
    pub n_prompt: usize,
    /// Those of them that were computed before.
    pub n_cached: usize,
    /// Tokens generated.
    pub n_generated: usize,
    /// Tokens that were guessed, and those of them that were right.
    pub drafted: Drafted,
    /// Those of the tokens generated with which something was thought.
    pub n_reasoning: usize,
    /// Time of prompts.
    pub t_prompt: Duration,
    /// Time from the first token to the last, of the choice that took longest.
    pub t_generated: Duration,
}

/// A choice from beginning to end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choice {
    /// What was thought.
    pub reasoning: String,
    /// What was said.
    pub content: String,
    /// Functions that were called.
    pub calls: Vec<Call>,
    /// How likely its tokens were, if that was asked for, each with where it begins in `content`.
    pub logprobs: Vec<(TokenLogprob, usize)>,
    /// Why it ended.
    pub finish: Option<Finish>,
}

impl Answer {
    /// The answer to prompts under way, each with its number of choices. `parser`: what tells reasoning and calls of functions from the rest.
    pub fn new(asked: Vec<(UnboundedReceiver<Event>, usize)>, parser: &OutputParser) -> Answer {
        let n_open = asked.first().map_or(0, |(_, n)| *n);
        let n_choices = asked.iter().map(|(_, n)| n).sum();
        Answer {
            prompts: asked.into_iter().map(|(events, n)| Asked { events, n }).collect(),
            parsers: vec![parser.clone(); n_choices],
            n_calls: vec![0; n_choices],
            n_told: vec![0; n_choices],
            pieces: VecDeque::new(),
            first: 0,
            n_open,
            usage: Usage::default(),
        }
    }

    /// How many choices there are.
    pub fn n_choices(&self) -> usize {
        self.parsers.len()
    }

    /// The next piece; `None` when all is told.
    pub async fn next(&mut self) -> Option<Piece> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                return Some(piece);
            }
            let asked = self.prompts.front_mut()?;
            match asked.events.recv().await {
                Some(event) => self.take(event),
                None => {
                    self.fail("the model has stopped working; the server has to be started anew".to_owned());
                }
            }
        }
    }

    /// All of it: the choices in order, or why there are none.
    pub async fn whole(&mut self) -> ApiResult<(Vec<Choice>, Vec<PromptDone>)> {
        let mut choices = vec![Choice::default(); self.n_choices()];
        let mut prompts = Vec::new();
        while let Some(piece) = self.next().await {
            match piece {
                Piece::Prompt { done, .. } => prompts.push(done),
                Piece::Text {
                    choice,
                    reasoning,
                    content,
                    logprob,
                } => {
                    let choice = &mut choices[choice];
                    let at = choice.content.len();
                    choice.logprobs.extend(logprob.map(|logprob| (logprob, at)));
                    choice.reasoning += &reasoning;
                    choice.content += &content;
                }
                Piece::Call { choice, name, .. } => {
                    let arguments = String::new();
                    choices[choice].calls.push(Call { name, arguments });
                }
                Piece::Arguments { choice, index, text } => {
                    if let Some(call) = choices[choice].calls.get_mut(index) {
                        call.arguments += &text;
                    }
                }
                Piece::End { choice, finish, .. } => choices[choice].finish = Some(finish),
                Piece::Failed(text) => return Err(ApiError::server(text)),
            }
        }
        Ok((choices, prompts))
    }

    fn take(&mut self, event: Event) {
        let first = self.first;
        match event {
            Event::Prompt(done) => {
                self.usage.n_prompt += done.n_prompt;
                self.usage.n_cached += done.n_cached;
                self.usage.t_prompt += done.t_prompt;
                self.pieces.push_back(Piece::Prompt { choice: first, done });
            }
            Event::Token {
                choice, text, logprob, ..
            } => {
                self.n_told[first + choice] += 1;
                self.usage.n_generated += 1;
                self.say(first + choice, &text, logprob, false);
            }
            Event::End {
                choice,
                finish,
                text,
                n_generated,
                drafted,
                t_generated,
            } => {
                let choice = first + choice;
                self.say(choice, &text, None, true);
                self.usage.n_generated += n_generated;
                self.usage.n_generated -= std::mem::take(&mut self.n_told[choice]);
                self.usage.drafted.n_drafts += drafted.n_drafts;
                self.usage.drafted.n_right += drafted.n_right;
                self.usage.t_generated = self.usage.t_generated.max(t_generated);
                let n_calls = self.n_calls[choice];
                self.pieces.push_back(Piece::End {
                    choice,
                    finish,
                    n_calls,
                });
                self.n_open -= 1;
                if self.n_open == 0 {
                    self.go_on();
                }
            }
            Event::Failed(text) => self.fail(text),
        }
    }

    /// Goes on with the next prompt.
    fn go_on(&mut self) {
        if let Some(done) = self.prompts.pop_front() {
            self.first += done.n;
        }
        self.n_open = self.prompts.front().map_or(0, |asked| asked.n);
    }

    /// What is left is not waited for, and so ends.
    fn fail(&mut self, text: String) {
        self.pieces.push_back(Piece::Failed(text));
        self.prompts.clear();
    }

    /// Makes pieces of what was said; the first has how likely its token was.
    fn say(&mut self, choice: usize, text: &str, logprob: Option<TokenLogprob>, is_last: bool) {
        let said = self.parsers[choice].push(text, is_last);
        let is_thought = said.iter().any(|said| matches!(said, Said::Reasoning(_)));
        self.usage.n_reasoning += usize::from(is_thought && !is_last);
        let mut logprob = logprob;
        let mut first = None;
        for said in said {
            // Of what was thought and said at once one piece is made.
            let (reasoning, content) = match (said, first.take()) {
                (Said::Reasoning(text), None) => {
                    first = Some(text);
                    continue;
                }
                (Said::Reasoning(text), Some(before)) => {
                    first = Some(before + &text);
                    continue;
                }
                (Said::Text(text), before) => (before.unwrap_or_default(), text),
                (call, before) => {
                    self.text(choice, before.unwrap_or_default(), String::new(), logprob.take());
                    self.call(choice, call);
                    continue;
                }
            };
            self.text(choice, reasoning, content, logprob.take());
        }
        self.text(choice, first.unwrap_or_default(), String::new(), logprob);
    }

    fn text(&mut self, choice: usize, reasoning: String, content: String, logprob: Option<TokenLogprob>) {
        if !reasoning.is_empty() || !content.is_empty() || logprob.is_some() {
            self.pieces.push_back(Piece::Text {
                choice,
                reasoning,
                content,
                logprob,
            });
        }
    }

    fn call(&mut self, choice: usize, said: Said) {
        match said {
            Said::Call(name) => {
                let index = self.n_calls[choice];
                self.n_calls[choice] += 1;
                self.pieces.push_back(Piece::Call { choice, index, name });
            }
            Said::Arguments(text) => {
                let index = self.n_calls[choice].saturating_sub(1);
                self.pieces.push_back(Piece::Arguments { choice, index, text });
            }
            Said::Reasoning(_) | Said::Text(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use engine::chat::ReasoningSplit;
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;

    fn token(choice: usize, text: &str) -> Event {
        Event::Token {
            choice,
            token: 0,
            text: text.to_owned(),
            logprob: None,
        }
    }

    fn end(choice: usize, text: &str) -> Event {
        Event::End {
            choice,
            finish: Finish::Limit,
            text: text.to_owned(),
            n_generated: 2,
            drafted: Drafted::default(),
            t_generated: Duration::ZERO,
        }
    }

    fn whole(asked: Vec<(Vec<Event>, usize)>) -> ApiResult<Vec<Choice>> {
        let asked = asked.into_iter().map(|(told, n)| {
            let (events, answer) = unbounded_channel();
            told.into_iter()
                .for_each(|event| events.send(event).expect("it is listened to"));
            (answer, n)
        });
        let reasoning = ReasoningSplit::new(Some(("<think>", "</think>")), "");
        let parser = OutputParser::Tags { reasoning, calls: None };
        let mut answer = Answer::new(asked.collect(), &parser);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        runtime.block_on(answer.whole()).map(|(choices, _)| choices)
    }

    #[test]
    fn choices_of_several_prompts_stand_in_order() {
        let first = vec![
            token(1, "<thi"),
            token(0, "a"),
            end(0, ""),
            token(1, "nk>b</think>"),
            end(1, "c"),
        ];
        let choices = whole(vec![(first, 2), (vec![end(0, "d")], 1)]).unwrap();
        let texts: Vec<_> = choices
            .iter()
            .map(|c| (c.reasoning.as_str(), c.content.as_str()))
            .collect();
        assert_eq!(texts, [("", "a"), ("b", "c"), ("", "d")]);
        assert!(choices.iter().all(|c| c.finish == Some(Finish::Limit)));
    }

    #[test]
    fn what_ends_too_early_has_failed() {
        assert!(whole(vec![(vec![token(0, "a")], 1)]).is_err());
        assert!(whole(vec![(vec![Event::Failed("x".to_owned())], 1), (vec![end(0, "")], 1)]).is_err());
    }
}
