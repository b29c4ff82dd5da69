//! How things stand: `/health`, `/ready`, `/props`, `/slots` and `/metrics`.

use std::fmt::Write;
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use engine::sample::PARAMS;
use serde_json::{Map, Value as Json, json};

use crate::api::{ApiError, ApiResult, name_of};
use crate::http::{Shared, json};
use crate::metrics::{Histogram, Metrics};
use crate::scheduler::Scheduler;

/// A step that takes longer than this is taken for one that never ends.
const STUCK: Duration = Duration::from_secs(120);

/// Says whether the model is being computed, or would be.
pub async fn health(State(app): State<Shared>) -> ApiResult {
    let scheduler = &app.served.scheduler;
    if let Some(age) = scheduler.metrics().step_age().filter(|&age| age > STUCK) {
        let seconds = age.as_secs();
        return Err(ApiError::unavailable(format!(
            "the model has been computing one step for {seconds} s"
        )));
    }
    match scheduler.is_running() {
        true => Ok(json(&json!({ "status": "ok" }))),
        false => Err(ApiError::unavailable("the model is not computed any more")),
    }
}

/// Says whether new requests are taken.
pub async fn ready(State(app): State<Shared>) -> Response {
    let is_open = app.served.scheduler.is_open();
    let status = if is_open { "ready" } else { "draining" };
    let code = if is_open {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (code, json(&json!({ "status": status }))).into_response()
}

/// Settings, and what the model is.
pub async fn props(State(app): State<Shared>) -> Response {
    let served = &app.served;
    let settings = PARAMS.iter().map(|def| {
        let text = (def.get)(&served.params.sampler);
        let value = serde_json::from_str::<Json>(&text).ok().filter(Json::is_number);
        (name_of(def).to_owned(), value.unwrap_or(text.into()))
    });
    let text = |token: Option<u32>| token.map(|token| served.vocab().text(token).into_owned());
    json(&json!({
        "default_generation_settings": {
            "n_ctx": served.n_ctx(),
            "params": settings.collect::<Map<String, Json>>(),
        },
        "total_slots": served.scheduler.settings().n_parallel,
        "model_alias": served.params.name,
        "chat_template": served.template(),
        "bos_token": text(served.vocab().bos()),
        "eos_token": text(served.vocab().eos()),
        "modalities": { "vision": false, "audio": false },
        "build_info": served.params.build,
    }))
}

/// Sequences in use.
pub async fn slots(State(app): State<Shared>) -> Response {
    let scheduler = &app.served.scheduler;
    let n_busy = scheduler.gauges().n_running;
    let slot = |id: usize| json!({ "id": id, "n_ctx": app.served.n_ctx(), "is_processing": id < n_busy });
    let slots: Vec<Json> = (0..scheduler.settings().n_parallel).map(slot).collect();
    json(&slots.into())
}

/// Counters for Prometheus, under the names of llama-server, and under those of vLLM that gateways look for.
pub async fn metrics(State(app): State<Shared>) -> Response {
    let text = exposition(&app.served.scheduler, &app.served.params.name);
    (
        [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
        text,
    )
        .into_response()
}

fn exposition(scheduler: &Scheduler, name: &str) -> String {
    let (m, gauges) = (scheduler.metrics(), scheduler.gauges());
    let name = name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let mut page = Page {
        text: String::new(),
        label: format!("model_name=\"{name}\""),
    };
    let usage = match gauges.is_limited {
        true => gauges.n_used as f64 / gauges.n_ctx.max(1) as f64,
        false => 0.0,
    };
    let seconds = |micros: u64| micros as f64 / 1e6;
    let rate = |n: u64, micros: u64| if micros == 0 { 0.0 } else { n as f64 / seconds(micros) };
    let per_decode = m.n_decoded_sequences.get() as f64 / m.n_decode.get().max(1) as f64;
    for (name, kind, value, help) in [
        (
            "llamacpp:prompt_tokens_total",
            "counter",
            m.n_prompt.get() as f64,
            "Prompt tokens computed.",
        ),
        (
            "llamacpp:prompt_tokens_cached_total",
            "counter",
            m.n_cached.get() as f64,
            "Prompt tokens computed before.",
        ),
        (
            "llamacpp:prompt_seconds_total",
            "counter",
            seconds(m.t_prompt.get()),
            "Time of steps with prompts.",
        ),
        (
            "llamacpp:tokens_predicted_total",
            "counter",
            m.n_generated.get() as f64,
            "Tokens generated.",
        ),
        (
            "llamacpp:tokens_predicted_seconds_total",
            "counter",
            seconds(m.t_decode.get()),
            "Time of steps that generate.",
        ),
        (
            "llamacpp:n_decode_total",
            "counter",
            m.n_decode.get() as f64,
            "Calls of decode.",
        ),
        (
            "llamacpp:n_tokens_max",
            "counter",
            m.n_tokens_max.get() as f64,
            "Most tokens of a sequence.",
        ),
        (
            "llamacpp:n_busy_slots_per_decode",
            "gauge",
            per_decode,
            "Sequences that generate, on average over calls of decode.",
        ),
        (
            "llamacpp:prompt_tokens_seconds",
            "gauge",
            rate(m.n_prompt.get(), m.t_prompt.get()),
            "Prompt tokens in a second.",
        ),
        (
            "llamacpp:predicted_tokens_seconds",
            "gauge",
            rate(m.n_generated.get(), m.t_decode.get()),
            "Tokens generated in a second.",
        ),
        (
            "llamacpp:kv_cache_usage_ratio",
            "gauge",
            usage,
            "Share of the cells in use.",
        ),
        (
            "llamacpp:requests_processing",
            "gauge",
            gauges.n_running as f64,
            "Sequences that are worked on.",
        ),
        (
            "llamacpp:requests_deferred",
            "gauge",
            gauges.n_waiting as f64,
            "Requests that wait.",
        ),
    ] {
        page.plain(name, kind, value, help);
    }
    page.vllm(m, usage, (gauges.n_running, gauges.n_waiting), gauges.n_ctx);
    page.text
}

struct Page {
    text: String,
    label: String,
}

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail.
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn plain(&mut self, name: &str, kind: &str, value: f64, help: &str) {
        self.head(name, kind, help);
        let _ = writeln!(self.text, "{name} {value}");
    }

    fn labelled(&mut self, name: &str, kind: &str, value: f64, help: &str) {
        self.head(name, kind, help);
        let _ = writeln!(self.text, "{name}{{{}}} {value}", self.label);
    }

    fn vllm(&mut self, m: &Metrics, usage: f64, (n_running, n_waiting): (usize, usize), n_ctx: usize) {
        /// Cells of a page, as the engine has them.
        const PAGE: usize = 64;
        for (name, kind, value, help) in [
            (
                "vllm:num_requests_running",
                "gauge",
                n_running as f64,
                "Sequences that are worked on.",
            ),
            (
                "vllm:num_requests_waiting",
                "gauge",
                n_waiting as f64,
                "Requests that wait.",
            ),
            (
                "vllm:kv_cache_usage_perc",
                "gauge",
                usage,
                "Share of the cells in use, 1 being all.",
            ),
            (
                "vllm:num_preemptions_total",
                "counter",
                m.n_preempted.get() as f64,
                "Sequences that had to give way.",
            ),
            (
                "vllm:prompt_tokens_total",
                "counter",
                m.n_queried.get() as f64,
                "Tokens of prompts.",
            ),
            (
                "vllm:generation_tokens_total",
                "counter",
                m.n_generated.get() as f64,
                "Tokens generated.",
            ),
            (
                "vllm:prefix_cache_queries_total",
                "counter",
                m.n_queried.get() as f64,
                "Tokens that were looked for.",
            ),
            (
                "vllm:prefix_cache_hits_total",
                "counter",
                m.n_cached.get() as f64,
                "Tokens that were found.",
            ),
        ] {
            self.labelled(name, kind, value, help);
        }
        let name = "vllm:request_success_total";
        self.head(name, "counter", "Answers by why they ended.");
        for (reason, n) in [
            ("stop", &m.n_stopped),
            ("length", &m.n_limited),
            ("abort", &m.n_abandoned),
        ] {
            let _ = writeln!(
                self.text,
                "{name}{{{},finished_reason=\"{reason}\"}} {}",
                self.label,
                n.get()
            );
        }
        self.head("vllm:cache_config_info", "gauge", "How the cells are laid out.");
        let _ = writeln!(
            self.text,
            "vllm:cache_config_info{{{},block_size=\"{PAGE}\",num_gpu_blocks=\"{}\"}} 1",
            self.label,
            n_ctx / PAGE
        );
        self.histogram(
            "vllm:time_to_first_token_seconds",
            &m.to_first_token,
            "From a request to its first token.",
        );
        self.histogram(
            "vllm:inter_token_latency_seconds",
            &m.between_tokens,
            "From a token to the next.",
        );
        self.histogram(
            "vllm:request_queue_time_seconds",
            &m.queued,
            "From a request to the beginning of its work.",
        );
    }

    fn histogram(&mut self, name: &str, histogram: &Histogram, help: &str) {
        self.head(name, "histogram", help);
        let (buckets, sum, n) = histogram.cumulative();
        let label = &self.label;
        for (bound, count) in buckets {
            let _ = writeln!(self.text, "{name}_bucket{{{label},le=\"{bound}\"}} {count}");
        }
        let _ = write!(
            self.text,
            "{name}_bucket{{{label},le=\"+Inf\"}} {n}\n{name}_sum{{{label}}} {sum}\n{name}_count{{{label}}} {n}\n"
        );
    }
}
