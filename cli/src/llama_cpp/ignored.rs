//! llama-server options that `llama serve` accepts without effect, so that start scripts work. A notice is
//! printed at startup.

use super::CompatOption;

/// A llama.cpp option that has no effect here.
#[derive(Clone, Copy, Debug)]
pub struct IgnoredOption {
    /// Spelling of the option.
    pub name: &'static str,
    /// True if the option takes a value.
    pub has_value: bool,
    /// Reason; empty if the option table gives one.
    why: &'static str,
}

impl IgnoredOption {
    /// Finds an ignored option by its spelling.
    pub fn find(name: &str) -> Option<&'static IgnoredOption> {
        let option = CompatOption::find(name)?;
        IGNORED
            .iter()
            .find(|idle| option.names().any(|known| known == idle.name))
    }

    /// Returns the reason why the option has no effect.
    pub fn why(&self) -> &'static str {
        match (self.why, CompatOption::find(self.name).map(|option| option.support)) {
            ("", Some(super::Support::Unsupported(why))) => why,
            (why, _) => why,
        }
    }
}

const fn flag(name: &'static str, why: &'static str) -> IgnoredOption {
    IgnoredOption {
        name,
        has_value: false,
        why,
    }
}

const fn value(name: &'static str, why: &'static str) -> IgnoredOption {
    IgnoredOption {
        name,
        has_value: true,
        why,
    }
}

/// Ignored options. Rows of the option table with the same reason are not repeated.
#[rustfmt::skip]
pub const IGNORED: &[IgnoredOption] = &[
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
    value("--keep", "prompts are never truncated"),
    flag("--context-shift", "generation stops when the context is full"),
    flag("--no-context-shift", "the context is never shifted"),
    flag("--swa-full", ""),
    value("--ctx-checkpoints", ""),
    value("--checkpoint-min-step", "checkpoints are chosen automatically"),
    flag("--cache-idle-slots", "cached prompts are stored in the context"),
    flag("--no-cache-idle-slots", "cached prompts are stored in the context"),
    flag("--no-cache-prompt", "set `cache_prompt` in requests instead"),
    flag("--perf", "responses always include timings"),
    flag("--no-perf", "responses always include timings"),
    flag("--show-timings", "responses always include timings"),
    flag("--no-show-timings", "responses always include timings"),
    flag("--verbose-prompt", "request content is never logged"),
    value("--log-prompts-dir", "request content is never logged"),
    value("--verbosity", "use -v to log requests"),
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
    value("--mtmd-batch-max-tokens", "only text models are supported"),
    value("--video-fps", ""),
    value("--video-timestamp-interval", ""),
    value("--video-ffmpeg-dir", ""),
    value("--media-path", "only text models are supported"),
    flag("--rerank", "/v1/rerank is always enabled"),
    value("--tags", "model tags are not supported"),
    flag("--reuse-port", "only one server can listen on a port"),
    value("--cors-methods", "allowed origins may use all methods"),
    value("--cors-headers", "allowed origins may send all headers"),
    flag("--cors-credentials", "API keys are sent as headers; cookies are not used"),
    flag("--no-cors-credentials", "API keys are sent as headers; cookies are not used"),
    value("--ui-config", "the web page stores its own settings"),
    value("--ui-config-file", "the web page stores its own settings"),
    flag("--ui-mcp-proxy", "the web page only connects to this server"),
    flag("--no-ui-mcp-proxy", "the web page only connects to this server"),
    value("--tools", "tools are called by clients, not by the server"),
    value("--tools-runtime", "tools are called by clients, not by the server"),
    value("--mcp-servers-config", "tools are called by clients, not by the server"),
    value("--mcp-servers-json", "tools are called by clients, not by the server"),
    flag("--agent", "tools are called by clients, not by the server"),
    flag("--no-agent", "tools are called by clients, not by the server"),
    value("--sse-ping-interval", "event streams send a keep-alive after 15 idle seconds"),
    flag("--prefill-assistant", "set `continue_final_message` in requests instead"),
    flag("--no-prefill-assistant", "set `continue_final_message` in requests instead"),
    value("--sleep-idle-seconds", "idle models stay loaded and use no CPU time"),
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
