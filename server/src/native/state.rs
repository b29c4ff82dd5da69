//! How things stand: `/health`, `/ready`, `/props`, `/slots` and `/metrics`.

use std::fmt::Write;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use engine::sample::PARAMS;
use serde_json::{Map, Value as Json, json};

use crate::api::{ApiError, ApiResult, NO_LIMIT, name_of};
use crate::http::{Shared, json};
use crate::metrics::{Counter, Gauges, Histogram, Metrics};
use crate::scheduler::Scheduler;

/// Says whether the model is being computed, or would be.
pub async fn health(State(app): State<Shared>) -> ApiResult {
    check_health(&app.served.scheduler)?;
    Ok(json(&json!({ "status": "ok" })))
}

/// Why a model is not being computed.
pub fn check_health(scheduler: &Scheduler) -> ApiResult<()> {
    let limit = scheduler.settings().t_stuck;
    if let Some(age) = scheduler.metrics().step_age().filter(|&age| age > limit) {
        let seconds = age.as_secs();
        return Err(ApiError::unavailable(format!(
            "the model has been computing one step for {seconds} s"
        )));
    }
    match scheduler.is_running() {
        true => Ok(()),
        false => Err(ApiError::unavailable("the model is not computed any more")),
    }
}

/// Says whether new requests are taken.
pub async fn ready(State(app): State<Shared>) -> Response {
    readiness(app.served.scheduler.is_open())
}

/// What is said of that.
pub fn readiness(is_open: bool) -> Response {
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
        let text = (def.get)(&served.params.defaults.sampler);
        let value = serde_json::from_str::<Json>(&text).ok().filter(Json::is_number);
        (name_of(def).to_owned(), value.unwrap_or(text.into()))
    });
    let limit = served.max_tokens();
    let limit = if limit == NO_LIMIT { json!(-1) } else { json!(limit) };
    let limits = ["n_predict", "max_tokens"].map(|name| (name.to_owned(), limit.clone()));
    let text = |token: Option<u32>| token.map(|token| served.vocab().text(token).into_owned());
    json(&json!({
        "default_generation_settings": {
            "n_ctx": served.n_ctx(),
            "params": settings.chain(limits).collect::<Map<String, Json>>(),
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

/// Counters for Prometheus, under the names of llama-server, and under those of vLLM that gateways look for.
pub async fn metrics(State(app): State<Shared>) -> Response {
    page(&[(&app.served.scheduler, &app.served.params.name)], false)
}

/// The same of several models: each line tells of which.
pub fn exposition(models: &[(&Scheduler, &str)]) -> Response {
    page(models, true)
}

/// What the page is made of.
struct Now<'a> {
    /// Labels of the model, those of lines under the names of llama-server and those of the others.
    labels: [String; 2],
    metrics: &'a Metrics,
    gauges: Gauges,
}

impl Now<'_> {
    /// Share that so many cells are of all.
    fn share(&self, n: usize) -> f64 {
        match self.gauges.is_limited {
            true => n as f64 / self.gauges.n_ctx.max(1) as f64,
            false => 0.0,
        }
    }
}

/// A number on the page.
struct Metric {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    value: fn(&Now<'_>) -> f64,
}

const fn counter(name: &'static str, help: &'static str, value: fn(&Now<'_>) -> f64) -> Metric {
    let kind = "counter";
    Metric {
        name,
        kind,
        help,
        value,
    }
}

const fn gauge(name: &'static str, help: &'static str, value: fn(&Now<'_>) -> f64) -> Metric {
    let kind = "gauge";
    Metric {
        name,
        kind,
        help,
        value,
    }
}

/// Under the names of llama-server.
const LLAMACPP: &[Metric] = &[
    counter("llamacpp:prompt_tokens_total", "Prompt tokens computed.", |n| {
        count(&n.metrics.n_prompt)
    }),
    counter(
        "llamacpp:prompt_tokens_cached_total",
        "Prompt tokens computed before.",
        |n| count(&n.metrics.n_cached),
    ),
    counter("llamacpp:prompt_seconds_total", "Time of steps with prompts.", |n| {
        seconds(&n.metrics.t_prompt)
    }),
    counter("llamacpp:tokens_predicted_total", "Tokens generated.", |n| {
        count(&n.metrics.n_generated)
    }),
    counter(
        "llamacpp:tokens_predicted_seconds_total",
        "Time of steps that generate.",
        |n| seconds(&n.metrics.t_decode),
    ),
    counter("llamacpp:n_decode_total", "Calls of decode.", |n| {
        count(&n.metrics.n_decode)
    }),
    counter("llamacpp:n_tokens_max", "Most tokens of a sequence.", |n| {
        count(&n.metrics.n_tokens_max)
    }),
    gauge(
        "llamacpp:n_busy_slots_per_decode",
        "Sequences that generate, on average over calls of decode.",
        |n| count(&n.metrics.n_decoded_sequences) / count(&n.metrics.n_decode).max(1.0),
    ),
    gauge("llamacpp:prompt_tokens_seconds", "Prompt tokens in a second.", |n| {
        rate(&n.metrics.n_prompt, &n.metrics.t_prompt)
    }),
    gauge(
        "llamacpp:predicted_tokens_seconds",
        "Tokens generated in a second.",
        |n| rate(&n.metrics.n_generated, &n.metrics.t_decode),
    ),
    gauge(
        "llamacpp:kv_cache_usage_ratio",
        "Share of the cells in use, with those that are only kept.",
        |n| n.share(n.gauges.n_used),
    ),
    gauge("llamacpp:requests_processing", "Sequences that are worked on.", |n| {
        n.gauges.n_running as f64
    }),
    gauge("llamacpp:requests_deferred", "Requests that wait.", |n| {
        n.gauges.n_waiting as f64
    }),
];

/// Under the names of vLLM, with the model's name as a label.
const VLLM: &[Metric] = &[
    gauge("vllm:num_requests_running", "Sequences that are worked on.", |n| {
        n.gauges.n_running as f64
    }),
    gauge("vllm:num_requests_waiting", "Requests that wait.", |n| {
        n.gauges.n_waiting as f64
    }),
    // Gateways send nobody to a server that is full: what is only kept does not count, as with vLLM.
    gauge(
        "vllm:kv_cache_usage_perc",
        "Share of the cells that answers under way need, 1 being all.",
        |n| n.share(n.gauges.n_busy),
    ),
    counter("vllm:num_preemptions_total", "Sequences that had to give way.", |n| {
        count(&n.metrics.n_preempted)
    }),
    counter("vllm:prompt_tokens_total", "Tokens of prompts.", |n| {
        count(&n.metrics.n_queried)
    }),
    counter("vllm:generation_tokens_total", "Tokens generated.", |n| {
        count(&n.metrics.n_generated)
    }),
    counter("vllm:prefix_cache_queries_total", "Tokens that were looked for.", |n| {
        count(&n.metrics.n_queried)
    }),
    counter("vllm:prefix_cache_hits_total", "Tokens that were found.", |n| {
        count(&n.metrics.n_cached)
    }),
    counter(
        "vllm:spec_decode_num_draft_tokens_total",
        "Tokens guessed and verified.",
        |n| count(&n.metrics.n_drafts),
    ),
    counter(
        "vllm:spec_decode_num_accepted_tokens_total",
        "Tokens guessed that were right.",
        |n| count(&n.metrics.n_right),
    ),
];

fn count(counter: &Counter) -> f64 {
    counter.get() as f64
}

fn seconds(micros: &Counter) -> f64 {
    count(micros) / 1e6
}

fn rate(n: &Counter, micros: &Counter) -> f64 {
    match micros.get() {
        0 => 0.0,
        _ => count(n) / seconds(micros),
    }
}

/// The labels of a model's lines.
fn labels(name: &str, is_named: bool) -> [String; 2] {
    let name = name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    match is_named {
        true => [
            format!("model=\"{name}\""),
            format!("model=\"{name}\",model_name=\"{name}\""),
        ],
        false => [String::new(), format!("model_name=\"{name}\"")],
    }
}

fn page(models: &[(&Scheduler, &str)], are_named: bool) -> Response {
    let models = models.iter().map(|&(scheduler, name)| Now {
        labels: labels(name, are_named),
        metrics: scheduler.metrics(),
        gauges: scheduler.gauges(),
    });
    let mut page = Page {
        text: String::new(),
        models: models.collect(),
    };
    for (i, metrics) in [LLAMACPP, VLLM].into_iter().enumerate() {
        for metric in metrics {
            page.head(metric.name, metric.kind, metric.help);
            page.lines(metric.name, |now| vec![(now.labels[i].clone(), (metric.value)(now))]);
        }
    }
    page.ends();
    page.layout();
    page.histogram(
        "vllm:time_to_first_token_seconds",
        |m| &m.to_first_token,
        "From a request to its first token.",
    );
    page.histogram(
        "vllm:inter_token_latency_seconds",
        |m| &m.between_tokens,
        "From a token to the next.",
    );
    page.histogram(
        "vllm:request_queue_time_seconds",
        |m| &m.queued,
        "From a request to the beginning of its work.",
    );
    let content = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (content, page.text).into_response()
}

struct Page<'a> {
    text: String,
    models: Vec<Now<'a>>,
}

impl Page<'_> {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail.
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// Lines of all models: labels and values.
    fn lines(&mut self, name: &str, of: impl Fn(&Now<'_>) -> Vec<(String, f64)>) {
        for (labels, value) in self.models.iter().flat_map(of) {
            let _ = match labels.is_empty() {
                true => writeln!(self.text, "{name} {value}"),
                false => writeln!(self.text, "{name}{{{labels}}} {value}"),
            };
        }
    }

    /// Answers by why they ended.
    fn ends(&mut self) {
        let name = "vllm:request_success_total";
        self.head(name, "counter", "Answers by why they ended.");
        self.lines(name, |now| {
            let m = now.metrics;
            let all = [
                ("stop", &m.n_stopped),
                ("length", &m.n_limited),
                ("abort", &m.n_abandoned),
            ];
            let line =
                |(reason, n): (&str, &Counter)| (format!("{},finished_reason=\"{reason}\"", now.labels[1]), count(n));
            all.map(line).into()
        });
    }

    /// How cells are laid out.
    fn layout(&mut self) {
        /// Cells of a page, as the engine has them.
        const PAGE: usize = 64;
        let name = "vllm:cache_config_info";
        self.head(name, "gauge", "How the cells are laid out.");
        self.lines(name, |now| {
            let (label, n_pages) = (&now.labels[1], now.gauges.n_ctx / PAGE);
            vec![(
                format!("{label},block_size=\"{PAGE}\",num_gpu_blocks=\"{n_pages}\""),
                1.0,
            )]
        });
    }

    fn histogram(&mut self, name: &str, of: fn(&Metrics) -> &Histogram, help: &str) {
        self.head(name, "histogram", help);
        for now in &self.models {
            let (buckets, sum, n) = of(now.metrics).cumulative();
            let label = &now.labels[1];
            for (bound, count) in buckets {
                let _ = writeln!(self.text, "{name}_bucket{{{label},le=\"{bound}\"}} {count}");
            }
            let _ = write!(
                self.text,
                "{name}_bucket{{{label},le=\"+Inf\"}} {n}\n{name}_sum{{{label}}} {sum}\n{name}_count{{{label}}} {n}\n"
            );
        }
    }
}
