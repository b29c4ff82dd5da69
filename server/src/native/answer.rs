//! Finished completions in llama-server's format.

use engine::sample::Token;
use serde_json::{Value as Json, json};

use crate::chat::{Trace, Usage};
use crate::openai::timings_json;
use crate::scheduler::Finish;
use crate::service::ModelService;

/// A finished completion.
pub struct Finished<'a> {
    /// Index of the prompt.
    pub index: usize,
    /// Output that no event has sent.
    pub content: &'a str,
    /// Prompt tokens.
    pub prompt: &'a [Token],
    /// Settings of the request.
    pub settings: &'a Json,
    /// Stop type and stop string; see [`stop`].
    pub stop: (&'static str, &'a str),
    pub is_truncated: bool,
    pub has_new_line: bool,
    pub usage: &'a Usage,
}

impl Finished<'_> {
    /// Returns the response object.
    pub fn json(&self, service: &ModelService) -> Json {
        json!({
            "index": self.index,
            "content": self.content,
            "tokens": [],
            "stop": true,
            "model": service.params.name,
            "prompt": service.vocab().detokenize(self.prompt, false, true),
            "generation_settings": self.settings,
            "has_new_line": self.has_new_line,
            "tokens_predicted": self.usage.n_generated,
            "tokens_evaluated": self.usage.n_prompt,
            "tokens_cached": self.usage.n_cached,
            "truncated": self.is_truncated,
            "stop_type": self.stop.0,
            "stopping_word": self.stop.1,
            "timings": timings_json(self.usage),
        })
    }
}

/// Returns the stop type and the stop string of an ended completion.
pub fn stop(finish: Option<&Finish>) -> (&'static str, &str) {
    match finish {
        None => ("none", ""),
        Some(Finish::Model(_)) => ("eos", ""),
        Some(Finish::Stop(word)) => ("word", word),
        Some(Finish::Limit | Finish::ContextFull) => ("limit", ""),
    }
}

/// Returns the `__verbose` object: the first choice of a completion as llama-server's `/completion` returns it.
pub fn verbose_json(
    service: &ModelService,
    trace: &Trace,
    settings: &Json,
    finish: Option<&Finish>,
    usage: &Usage,
) -> Json {
    let content = trace.outputs.first().map_or("", String::as_str);
    let finished = Finished {
        index: 0,
        content,
        prompt: &trace.prompt,
        settings,
        stop: stop(finish),
        is_truncated: finish == Some(&Finish::ContextFull),
        has_new_line: content.contains('\n'),
        usage,
    };
    finished.json(service)
}
