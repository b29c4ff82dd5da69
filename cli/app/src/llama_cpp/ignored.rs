//! llama-server options that `llama serve` accepts without effect, so that start scripts work. A notice is
//! printed at startup.

use super::{CompatOption, Support};

/// A llama.cpp option that has no effect here.
#[derive(Clone, Copy, Debug)]
pub struct IgnoredOption {
    /// Spelling of the option.
    pub name: &'static str,
    /// True if the option takes a value.
    pub has_value: bool,
    /// Reason; empty if the table of unsupported options gives one.
    why: &'static str,
}

impl IgnoredOption {
    /// Finds an ignored option by any of its spellings.
    pub fn find(name: &str) -> Option<IgnoredOption> {
        let option = CompatOption::find(name)?;
        IgnoredOption::all().find(|ignored| option.names().any(|known| known == ignored.name))
    }

    /// Returns all ignored options.
    pub fn all() -> impl Iterator<Item = IgnoredOption> {
        let of_group = |group: &'static Group| {
            let option = move |name, has_value| IgnoredOption {
                name,
                has_value,
                why: group.why,
            };
            let flags = group.flags.iter().map(move |name| option(name, false));
            flags.chain(group.values.iter().map(move |name| option(name, true)))
        };
        IGNORED.iter().flat_map(of_group)
    }

    /// Returns the reason why the option has no effect.
    pub fn why(&self) -> &'static str {
        match CompatOption::find(self.name).map(|option| option.support) {
            Some(Support::Unsupported(why)) if self.why.is_empty() => why,
            _ => self.why,
        }
    }
}

/// Ignored options with one reason.
struct Group {
    /// Options without a value.
    flags: &'static [&'static str],
    /// Options with a value.
    values: &'static [&'static str],
    why: &'static str,
}

const fn group(flags: &'static [&'static str], values: &'static [&'static str], why: &'static str) -> Group {
    Group { flags, values, why }
}

/// Each entry: options without a value, options with a value, and the reason. The reasons of the first entry are in
/// the table of unsupported options.
#[rustfmt::skip]
const IGNORED: &[Group] = &[
    group(
        &[
            "--swa-full", "--no-host", "--backend-sampling", "--mmproj-auto", "--mmproj-offload", "--no-mmproj-offload",
            "--cpu-moe-draft", "--spec-draft-backend-sampling",
        ],
        &[
            "--cpu-mask", "--cpu-range", "--cpu-strict", "--prio", "--poll", "--cpu-mask-batch", "--cpu-range-batch",
            "--cpu-strict-batch", "--prio-batch", "--poll-batch", "--ctx-checkpoints", "--rpc", "--lazy-mode",
            "--lookup-cache-static", "--lookup-cache-dynamic", "--mmproj-url",
            "--video-fps", "--video-timestamp-interval",
            "--video-ffmpeg-dir", "--threads-draft", "--threads-batch-draft", "--cpu-mask-draft", "--cpu-range-draft",
            "--cpu-strict-draft", "--prio-draft", "--poll-draft", "--cpu-mask-batch-draft", "--cpu-range-batch-draft",
            "--cpu-strict-batch-draft", "--prio-batch-draft", "--poll-batch-draft", "--cache-type-k-draft",
            "--cache-type-v-draft", "--override-tensor-draft", "--n-cpu-moe-draft", "--spec-draft-n-min",
            "--draft-p-split", "--draft-p-min", "--spec-draft-sampling", "--spec-ngram-mod-n-min",
            "--spec-ngram-mod-n-max", "--spec-ngram-mod-n-match", "--spec-ngram-simple-size-n",
            "--spec-ngram-simple-size-m", "--spec-ngram-simple-min-hits", "--spec-ngram-map-k-size-n",
            "--spec-ngram-map-k-size-m", "--spec-ngram-map-k-min-hits", "--spec-ngram-map-k4v-size-n",
            "--spec-ngram-map-k4v-size-m", "--spec-ngram-map-k4v-min-hits", "--draft-n-min", "--spec-ngram-size-n",
            "--spec-ngram-size-m", "--spec-ngram-min-hits",
        ],
        "",
    ),
    group(&[], &["--keep"], "prompts are never truncated"),
    group(&["--context-shift"], &[], "generation stops when the context is full"),
    group(&["--no-context-shift"], &[], "the context is never shifted"),
    group(&[], &["--checkpoint-min-step"], "checkpoints are chosen automatically"),
    group(&["--cache-idle-slots", "--no-cache-idle-slots"], &[], "cached prompts are stored in the context"),
    group(&["--no-cache-prompt"], &[], "set `cache_prompt` in requests instead"),
    group(&["--perf", "--no-perf", "--show-timings", "--no-show-timings"], &[], "responses always include timings"),
    group(&["--verbose-prompt"], &["--log-prompts-dir"], "request content is never logged"),
    group(&[], &["--verbosity"], "use -v to log requests"),
    group(&["--escape", "--no-escape"], &[], "prompts come from requests"),
    group(&[], &["--mtmd-batch-max-tokens"], "an image is always encoded as a whole"),
    group(&["--rerank"], &[], "/v1/rerank is always enabled"),
    group(&["--reuse-port"], &[], "only one server can listen on a port"),
    group(&[], &["--cors-methods"], "allowed origins may use all methods"),
    group(&[], &["--cors-headers"], "allowed origins may send all headers"),
    group(&["--cors-credentials", "--no-cors-credentials"], &[], "API keys are sent as headers; cookies are not used"),
    group(&[], &["--ui-config", "--ui-config-file"], "the web page stores its own settings"),
    group(&["--ui-mcp-proxy", "--no-ui-mcp-proxy"], &[], "the web page only connects to this server"),
    group(
        &["--agent", "--no-agent"],
        &["--tools", "--tools-runtime", "--mcp-servers-config", "--mcp-servers-json"],
        "tools are called by clients, not by the server",
    ),
    group(&[], &["--sse-ping-interval"], "event streams send a keep-alive after 15 idle seconds"),
    group(&["--prefill-assistant", "--no-prefill-assistant"], &[], "set `continue_final_message` in requests instead"),
];
