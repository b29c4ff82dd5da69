//! What becomes of requests, as interfaces tell it: pieces of text by choice, reasoning told from answers, and counts.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use engine::chat::{ReasoningSplit, Spoken};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::api::{ApiError, ApiResult};
use crate::scheduler::{Event, Finish, PromptDone, TokenLogprob};
use crate::tools::{Call, Said, ToolSplit};

/// One or several prompts under way, told one after the other.
pub struct Answer {
    prompts: VecDeque<Asked>,
    splits: Vec<ReasoningSplit>,
    /// By choice, if functions may be called.
    calls: Vec<ToolSplit>,
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
    /// A function is called.
    Call {
        /// In which choice.
        choice: usize,
        /// The number of the call in its choice.
        index: usize,
        /// The call.
        call: Call,
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
    /// The answer to prompts under way, each with its number of choices. `split`, `calls`: what tells reasoning and calls of functions from the rest.
    pub fn new(
        asked: Vec<(UnboundedReceiver<Event>, usize)>,
        split: &ReasoningSplit,
        calls: Option<&ToolSplit>,
    ) -> Answer {
        let n_open = asked.first().map_or(0, |(_, n)| *n);
        let n_choices = asked.iter().map(|(_, n)| n).sum();
        Answer {
            prompts: asked.into_iter().map(|(events, n)| Asked { events, n }).collect(),
            splits: vec![split.clone(); n_choices],
            calls: calls.map_or(Vec::new(), |calls| vec![calls.clone(); n_choices]),
            pieces: VecDeque::new(),
            first: 0,
            n_open,
            usage: Usage::default(),
        }
    }

    /// How many choices there are.
    pub fn n_choices(&self) -> usize {
        self.splits.len()
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
                Piece::Call { choice, call, .. } => choices[choice].calls.push(call),
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
            } => self.say(first + choice, &text, logprob, false),
            Event::End {
                choice,
                finish,
                text,
                n_generated,
                t_generated,
            } => {
                let choice = first + choice;
                self.say(choice, &text, None, true);
                self.usage.n_generated += n_generated;
                self.usage.t_generated = self.usage.t_generated.max(t_generated);
                let n_calls = self.calls.get(choice).map_or(0, ToolSplit::n_calls);
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

    fn say(&mut self, choice: usize, text: &str, logprob: Option<TokenLogprob>, is_last: bool) {
        let (mut reasoning, mut content) = (String::new(), String::new());
        let mut take = |spoken: Spoken, text: &str| -> Result<(), Infallible> {
            match spoken {
                Spoken::Reasoning => reasoning.push_str(text),
                Spoken::Answer => content.push_str(text),
                Spoken::Tag | Spoken::Gap => {}
            }
            Ok(())
        };
        let split = &mut self.splits[choice];
        let Ok(()) = split.push(text, &mut take);
        if is_last {
            let Ok(()) = split.finish(&mut take);
        }
        let n_before = self.calls.get(choice).map_or(0, ToolSplit::n_calls);
        let said = match self.calls.get_mut(choice) {
            None => vec![Said::Text(content)],
            Some(calls) => {
                let mut said = Vec::new();
                calls.push(&content, &mut said);
                if is_last {
                    calls.finish(&mut said);
                }
                said
            }
        };
        self.tell(choice, reasoning, said, logprob, n_before);
    }

    /// Makes pieces of what was said; the first has what was thought and how likely its token was.
    fn tell(
        &mut self,
        choice: usize,
        reasoning: String,
        said: Vec<Said>,
        logprob: Option<TokenLogprob>,
        n_before: usize,
    ) {
        let mut text = |reasoning: String, content: String, logprob: Option<TokenLogprob>| {
            if !reasoning.is_empty() || !content.is_empty() || logprob.is_some() {
                self.pieces.push_back(Piece::Text {
                    choice,
                    reasoning,
                    content,
                    logprob,
                });
            }
        };
        let mut said = said.into_iter().peekable();
        let first = said.next_if(|said| matches!(said, Said::Text(_)));
        match first {
            Some(Said::Text(content)) => text(reasoning, content, logprob),
            _ => text(reasoning, String::new(), logprob),
        }
        let mut index = n_before;
        for said in said {
            match said {
                Said::Text(content) => self.pieces.push_back(Piece::Text {
                    choice,
                    reasoning: String::new(),
                    content,
                    logprob: None,
                }),
                Said::Call(call) => {
                    self.pieces.push_back(Piece::Call { choice, index, call });
                    index += 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
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
        let split = ReasoningSplit::new(Some(("<think>", "</think>")), "");
        let mut answer = Answer::new(asked.collect(), &split, None);
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
