//! Options of llama-server that change no answer of `llama serve`: its start scripts go on to work, and are told once what has no effect.

use super::Foreign;

/// An option without effect.
#[derive(Clone, Copy, Debug)]
pub struct Idle {
    /// One of its spellings.
    pub name: &'static str,
    /// A value follows.
    pub has_value: bool,
    /// Why it has none; empty where the list of all options says so.
    why: &'static str,
}

impl Idle {
    /// The option with this spelling, if it is one of those.
    pub fn find(name: &str) -> Option<&'static Idle> {
        let option = Foreign::find(name)?;
        IDLE.iter().find(|idle| option.names().any(|known| known == idle.name))
    }

    /// Why it has no effect.
    pub fn why(&self) -> &'static str {
        match (self.why, Foreign::find(self.name).map(|option| option.here)) {
            ("", Some(super::Here::No(why))) => why,
            (why, _) => why,
        }
    }
}

const fn flag(name: &'static str, why: &'static str) -> Idle {
    Idle {
        name,
        has_value: false,
        why,
    }
}

const fn value(name: &'static str, why: &'static str) -> Idle {
    Idle {
        name,
        has_value: true,
        why,
    }
}

/// They are the same where the row of the list is the same.
#[rustfmt::skip]
pub const IDLE: &[Idle] = &[
    value("--cpu-mask", ""),
    value("--cpu-range", ""),
    value("--cpu-strict", ""),
    value("--prio", ""),
    value("--poll", ""),
    value("--cpu-mask-batch", ""),
    value("--cpu-range-batch", ""),
    value("--cpu-strict-batch", ""),
    value("--prio-batch", ""),
    value("--poll-batch", ""),
    value("--keep", "nothing of a text is ever cut"),
    flag("--context-shift", "a text ends where the context is full"),
    flag("--no-context-shift", "nothing is ever shifted"),
    flag("--swa-full", ""),
    value("--ctx-checkpoints", ""),
    value("--checkpoint-min-step", "places to go back to are chosen by the memory of the model"),
    flag("--cache-idle-slots", "what was computed is kept in the context"),
    flag("--no-cache-idle-slots", "what was computed is kept in the context"),
    flag("--no-cache-prompt", "requests say so by `cache_prompt`"),
    flag("--perf", "answers have their times"),
    flag("--no-perf", "answers have their times"),
    flag("--show-timings", "answers have their times"),
    flag("--no-show-timings", "answers have their times"),
    flag("--verbose-prompt", "what was said is never told"),
    value("--log-prompts-dir", "what was said is never told"),
    value("--verbosity", "requests are told of with -v"),
    flag("--escape", "prompts come from requests"),
    flag("--no-escape", "prompts come from requests"),
    flag("--no-host", ""),
    value("--rpc", ""),
    value("--lazy-mode", ""),
    value("--numa", ""),
    flag("--backend-sampling", ""),
    value("--lookup-cache-static", ""),
    value("--lookup-cache-dynamic", ""),
    value("--mmproj", ""),
    value("--mmproj-url", ""),
    flag("--mmproj-auto", ""),
    flag("--mmproj-offload", ""),
    flag("--no-mmproj-offload", ""),
    value("--mmproj-device", ""),
    value("--image-min-tokens", ""),
    value("--image-max-tokens", ""),
    value("--mtmd-batch-max-tokens", "models run on text only"),
    value("--video-fps", ""),
    value("--video-timestamp-interval", ""),
    value("--video-ffmpeg-dir", ""),
    value("--media-path", "models run on text only"),
    flag("--rerank", "/v1/rerank is always there, beside the rest"),
    value("--tags", "models have no tags"),
    flag("--reuse-port", "a port is listened on by one server"),
    value("--cors-methods", "pages that may ask may use any method"),
    value("--cors-headers", "pages that may ask may send any header"),
    flag("--cors-credentials", "keys are sent as headers, and nothing as a cookie"),
    flag("--no-cors-credentials", "keys are sent as headers, and nothing as a cookie"),
    value("--ui-config", "the page has settings of its own"),
    value("--ui-config-file", "the page has settings of its own"),
    flag("--ui-mcp-proxy", "the page asks nobody but this server"),
    flag("--no-ui-mcp-proxy", "the page asks nobody but this server"),
    value("--tools", "functions are called by clients, never by the server"),
    value("--tools-runtime", "functions are called by clients, never by the server"),
    value("--mcp-servers-config", "functions are called by clients, never by the server"),
    value("--mcp-servers-json", "functions are called by clients, never by the server"),
    flag("--agent", "functions are called by clients, never by the server"),
    flag("--no-agent", "functions are called by clients, never by the server"),
    value("--sse-ping-interval", "streams have a sign of life after 15 s without a word"),
    flag("--prefill-assistant", "requests say so by `continue_final_message`"),
    flag("--no-prefill-assistant", "requests say so by `continue_final_message`"),
    value("--sleep-idle-seconds", "a model stays, and takes no time of a processor while nobody asks"),
    value("--threads-draft", ""),
    value("--threads-batch-draft", ""),
    value("--cpu-mask-draft", ""),
    value("--cpu-range-draft", ""),
    value("--cpu-strict-draft", ""),
    value("--prio-draft", ""),
    value("--poll-draft", ""),
    value("--cpu-mask-batch-draft", ""),
    value("--cpu-range-batch-draft", ""),
    value("--cpu-strict-batch-draft", ""),
    value("--prio-batch-draft", ""),
    value("--poll-batch-draft", ""),
    value("--cache-type-k-draft", ""),
    value("--cache-type-v-draft", ""),
    value("--override-tensor-draft", ""),
    flag("--cpu-moe-draft", ""),
    value("--n-cpu-moe-draft", ""),
    value("--spec-draft-n-min", ""),
    value("--draft-p-split", ""),
    value("--draft-p-min", ""),
    flag("--spec-draft-backend-sampling", ""),
    value("--spec-draft-sampling", ""),
    value("--spec-ngram-mod-n-min", ""),
    value("--spec-ngram-mod-n-max", ""),
    value("--spec-ngram-mod-n-match", ""),
    value("--spec-ngram-simple-size-n", ""),
    value("--spec-ngram-simple-size-m", ""),
    value("--spec-ngram-simple-min-hits", ""),
    value("--spec-ngram-map-k-size-n", ""),
    value("--spec-ngram-map-k-size-m", ""),
    value("--spec-ngram-map-k-min-hits", ""),
    value("--spec-ngram-map-k4v-size-n", ""),
    value("--spec-ngram-map-k4v-size-m", ""),
    value("--spec-ngram-map-k4v-min-hits", ""),
    value("--draft-n-min", ""),
    value("--spec-ngram-size-n", ""),
    value("--spec-ngram-size-m", ""),
    value("--spec-ngram-min-hits", ""),
];
