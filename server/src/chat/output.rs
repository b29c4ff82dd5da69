//! Merges the scheduler events of a request into a stream of output deltas with usage counts.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use engine::sample::Token;
use engine::speculate::Drafted;
use tokio::sync::mpsc::UnboundedReceiver;

use super::event::{Call, Ending, OutputEvent};
use super::parser::OutputParser;
use crate::api::{ApiError, ApiResult};
use crate::scheduler::{Event, Finish, PromptDone, PromptProgress, TokenLogprob};

/// Output of one or more prompts, streamed one prompt after the other.
pub struct OutputStream {
    prompts: VecDeque<PromptStream>,
    parsers: Vec<OutputParser>,
    /// Number of tool calls by choice.
    n_calls: Vec<usize>,
    /// Number of reported tokens by choice. The total is known only at the end.
    n_reported: Vec<usize>,
    pieces: VecDeque<OutputDelta>,
    /// Index of the first choice of the current prompt.
    first: usize,
    n_open: usize,
    /// Time of the first token.
    begun: Option<Instant>,
    /// Time from the first to the last token of the slowest choice that has ended.
    t_ended: Duration,
    /// Prompt and unparsed output; recorded only if set.
    pub trace: Option<Box<Trace>>,
    /// Token usage of the tokens received.
    pub usage: Usage,
}

/// Prompt of a request, and its output before it was parsed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// Prompt tokens.
    pub prompt: Vec<Token>,
    /// Output by choice.
    pub outputs: Vec<String>,
}

struct PromptStream {
    events: UnboundedReceiver<Event>,
    n: usize,
}

/// A piece of a streamed output.
#[derive(Clone, Debug, PartialEq)]
pub enum OutputDelta {
    /// The prompt whose first choice is `choice` has been processed.
    Prompt {
        /// Index of the first choice of the prompt.
        choice: usize,
        /// Statistics of the computed prompt.
        done: PromptDone,
    },
    /// Reasoning or content of a choice.
    Text {
        /// Index of the choice.
        choice: usize,
        /// Reasoning text; may be empty.
        reasoning: String,
        /// Content text; may be empty.
        content: String,
        /// Log probabilities of the token, if requested.
        logprob: Option<TokenLogprob>,
    },
    /// Start of a tool call; its arguments follow.
    Call {
        /// Index of the choice.
        choice: usize,
        /// Index of the call within the choice.
        index: usize,
        /// Function name.
        name: String,
    },
    /// Part of the arguments of a tool call.
    Arguments {
        /// Index of the choice.
        choice: usize,
        /// Index of the call within the choice.
        index: usize,
        /// Text to append to the tool call's arguments.
        text: String,
    },
    /// End of a choice.
    End {
        /// Index of the choice.
        choice: usize,
        /// Reason why the choice ended.
        finish: Finish,
        /// Number of tool calls in the choice.
        n_calls: usize,
    },
    /// The request failed. No further deltas follow.
    Failed(ApiError),
}

/// Item of an output stream.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamItem {
    /// A piece of the output.
    Delta(OutputDelta),
    /// Progress of the prompt whose first choice has this index.
    Progress(usize, PromptProgress),
}

/// Token counts and times, summed over all prompts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Usage {
    /// Prompt tokens.
    pub n_prompt: usize,
    /// Number of prompt tokens found in the cache.
    pub n_cached: usize,
    /// Generated tokens.
    pub n_generated: usize,
    /// Numbers of drafted and accepted tokens in speculative decoding.
    pub drafted: Drafted,
    /// Number of generated tokens that belong to reasoning.
    pub n_reasoning: usize,
    /// Prefill time.
    pub t_prompt: Duration,
    /// Time from the first to the last token of the slowest choice.
    pub t_generated: Duration,
}

impl Usage {
    /// Returns the usage without an earlier part.
    pub fn since(&self, before: &Usage) -> Usage {
        Usage {
            n_prompt: self.n_prompt - before.n_prompt,
            n_cached: self.n_cached - before.n_cached,
            n_generated: self.n_generated - before.n_generated,
            drafted: Drafted {
                n_drafts: self.drafted.n_drafts - before.drafted.n_drafts,
                n_right: self.drafted.n_right - before.drafted.n_right,
            },
            n_reasoning: self.n_reasoning - before.n_reasoning,
            t_prompt: self.t_prompt.saturating_sub(before.t_prompt),
            t_generated: self.t_generated,
        }
    }

    /// Returns the usage of a prompt in progress.
    pub fn of_progress(progress: &PromptProgress) -> Usage {
        Usage {
            n_prompt: progress.n_done,
            n_cached: progress.n_cached,
            t_prompt: progress.t_prompt,
            ..Usage::default()
        }
    }
}

/// A complete choice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choice {
    /// Reasoning text.
    pub reasoning: String,
    /// Content text.
    pub content: String,
    /// Tool calls.
    pub calls: Vec<Call>,
    /// Log probabilities, if requested, each with its byte offset in `content`.
    pub logprobs: Vec<(TokenLogprob, usize)>,
    /// Reason why the choice ended.
    pub finish: Option<Finish>,
}

impl OutputStream {
    /// Creates the output of submitted prompts, each given with its number of choices. Every choice gets a
    /// copy of `parser`.
    pub fn new(prompts: Vec<(UnboundedReceiver<Event>, usize)>, parser: &OutputParser) -> OutputStream {
        let n_open = prompts.first().map_or(0, |(_, n)| *n);
        let n_choices = prompts.iter().map(|(_, n)| n).sum();
        OutputStream {
            prompts: prompts
                .into_iter()
                .map(|(events, n)| PromptStream { events, n })
                .collect(),
            parsers: vec![parser.clone(); n_choices],
            n_calls: vec![0; n_choices],
            n_reported: vec![0; n_choices],
            pieces: VecDeque::new(),
            first: 0,
            n_open,
            begun: None,
            t_ended: Duration::ZERO,
            trace: None,
            usage: Usage::default(),
        }
    }

    /// Records this prompt and the unparsed output, unless the prompt is `None`.
    pub fn traced(self, prompt: Option<Vec<Token>>) -> OutputStream {
        let outputs = vec![String::new(); self.n_choices()];
        OutputStream {
            trace: prompt.map(|prompt| Box::new(Trace { prompt, outputs })),
            ..self
        }
    }

    /// Returns the number of choices.
    pub fn n_choices(&self) -> usize {
        self.parsers.len()
    }

    /// Returns the next delta, or `None` at the end. Progress is skipped.
    pub async fn next(&mut self) -> Option<OutputDelta> {
        loop {
            if let StreamItem::Delta(delta) = self.next_item().await? {
                return Some(delta);
            }
        }
    }

    /// Returns the next delta or progress, or `None` at the end.
    pub async fn next_item(&mut self) -> Option<StreamItem> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                return Some(StreamItem::Delta(piece));
            }
            let prompt = self.prompts.front_mut()?;
            match prompt.events.recv().await {
                Some(Event::Progress(progress)) => return Some(StreamItem::Progress(self.first, progress)),
                Some(event) => self.take(event),
                None => {
                    let why = "the model has stopped after an internal error; restart the server";
                    self.fail(ApiError::server(why));
                }
            }
        }
    }

    /// Collects all deltas. Returns the choices in order, or the error of the request.
    pub async fn whole(&mut self) -> ApiResult<(Vec<Choice>, Vec<PromptDone>)> {
        let mut choices = vec![Choice::default(); self.n_choices()];
        let mut prompts = Vec::new();
        while let Some(piece) = self.next().await {
            match piece {
                OutputDelta::Prompt { done, .. } => prompts.push(done),
                OutputDelta::Text {
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
                OutputDelta::Call { choice, name, .. } => {
                    let arguments = String::new();
                    choices[choice].calls.push(Call { name, arguments });
                }
                OutputDelta::Arguments { choice, index, text } => {
                    if let Some(call) = choices[choice].calls.get_mut(index) {
                        call.arguments += &text;
                    }
                }
                OutputDelta::End { choice, finish, .. } => choices[choice].finish = Some(finish),
                OutputDelta::Failed(error) => return Err(error),
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
                self.pieces.push_back(OutputDelta::Prompt { choice: first, done });
            }
            Event::Token {
                choice, text, logprob, ..
            } => {
                self.n_reported[first + choice] += 1;
                self.usage.n_generated += 1;
                let begun = *self.begun.get_or_insert_with(Instant::now);
                self.usage.t_generated = self.t_ended.max(begun.elapsed());
                self.push_text(first + choice, &text, logprob, None);
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
                let ending = match finish {
                    Finish::Model(_) | Finish::Stop(_) => Ending::Complete,
                    Finish::Limit | Finish::ContextFull => Ending::CutOff,
                };
                self.push_text(choice, &text, None, Some(ending));
                self.usage.n_generated += n_generated;
                self.usage.n_generated -= std::mem::take(&mut self.n_reported[choice]);
                self.usage.drafted.n_drafts += drafted.n_drafts;
                self.usage.drafted.n_right += drafted.n_right;
                self.t_ended = self.t_ended.max(t_generated);
                self.usage.t_generated = self.t_ended;
                let n_calls = self.n_calls[choice];
                self.pieces.push_back(OutputDelta::End {
                    choice,
                    finish,
                    n_calls,
                });
                self.n_open -= 1;
                if self.n_open == 0 {
                    self.next_prompt();
                }
            }
            Event::Progress(_) => {}
            Event::Failed(text) => self.fail(ApiError::server(text)),
            Event::Refused(text) => self.fail(ApiError {
                code: Some("invalid_grammar"),
                ..ApiError::invalid(text)
            }),
        }
    }

    /// Advances to the next prompt.
    fn next_prompt(&mut self) {
        if let Some(done) = self.prompts.pop_front() {
            self.first += done.n;
        }
        self.n_open = self.prompts.front().map_or(0, |prompt| prompt.n);
    }

    /// Emits an error and drops the remaining prompts, which cancels them.
    pub fn fail(&mut self, error: ApiError) {
        self.pieces.push_back(OutputDelta::Failed(error));
        self.prompts.clear();
    }

    /// Parses output text into deltas; the first delta carries `logprob`. Reasoning followed by content in one
    /// parser result becomes a single delta.
    fn push_text(&mut self, choice: usize, text: &str, mut logprob: Option<TokenLogprob>, ending: Option<Ending>) {
        if let Some(trace) = &mut self.trace {
            trace.outputs[choice] += text;
        }
        let events = self.parsers[choice].push(text, ending);
        let is_reasoning = events.iter().any(|event| matches!(event, OutputEvent::Reasoning(_)));
        self.usage.n_reasoning += usize::from(is_reasoning && ending.is_none());
        let mut reasoning = String::new();
        for event in events {
            match event {
                OutputEvent::Reasoning(text) => reasoning += &text,
                OutputEvent::Text(content) => {
                    self.text(choice, std::mem::take(&mut reasoning), content, logprob.take());
                }
                OutputEvent::Call(name) => {
                    self.text(choice, std::mem::take(&mut reasoning), String::new(), logprob.take());
                    let index = self.n_calls[choice];
                    self.n_calls[choice] += 1;
                    self.pieces.push_back(OutputDelta::Call { choice, index, name });
                }
                OutputEvent::Arguments(text) => {
                    self.text(choice, std::mem::take(&mut reasoning), String::new(), logprob.take());
                    let index = self.n_calls[choice].saturating_sub(1);
                    self.pieces.push_back(OutputDelta::Arguments { choice, index, text });
                }
            }
        }
        self.text(choice, reasoning, String::new(), logprob);
    }

    fn text(&mut self, choice: usize, reasoning: String, content: String, logprob: Option<TokenLogprob>) {
        if !reasoning.is_empty() || !content.is_empty() || logprob.is_some() {
            self.pieces.push_back(OutputDelta::Text {
                choice,
                reasoning,
                content,
                logprob,
            });
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

    fn whole(prompts_in: Vec<(Vec<Event>, usize)>) -> ApiResult<Vec<Choice>> {
        let prompts_in = prompts_in.into_iter().map(|(told, n)| {
            let (events, stream) = unbounded_channel();
            told.into_iter()
                .for_each(|event| events.send(event).expect("the receiver is still alive"));
            (stream, n)
        });
        let reasoning = ReasoningSplit::new(Some(("<think>", "</think>")), "");
        let parser = OutputParser::Tags { reasoning, calls: None };
        let mut stream = OutputStream::new(prompts_in.collect(), &parser);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        runtime.block_on(stream.whole()).map(|(choices, _)| choices)
    }

    #[test]
    fn output_orders_choices_of_several_prompts() {
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
    fn output_fails_if_events_end_early() {
        assert!(whole(vec![(vec![token(0, "a")], 1)]).is_err());
        assert!(whole(vec![(vec![Event::Failed("x".to_owned())], 1), (vec![end(0, "")], 1)]).is_err());
    }
}
