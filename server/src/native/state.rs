//! Server state: `/health`, `/ready`, `/props`, and `/metrics`.

use std::fmt::Write;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use engine::model::Medium;
use serde_json::{Value as Json, json};

use super::settings::{limit_json, sampler_json};
use crate::api::{ApiError, ApiResult};
use crate::app::Shared;
use crate::http::json;
use crate::metrics::{Counter, Gauges, Histogram, Metrics, Rates};
use crate::openai::MEDIA_MARKER;
use crate::scheduler::Scheduler;
use crate::service::ModelService;

/// Handles `GET /health`.
pub async fn health(State(app): State<Shared>) -> ApiResult {
    check_health(&app.service.scheduler)?;
    Ok(json(&json!({ "status": "ok" })))
}

/// Returns an error if the scheduler is stuck or has stopped.
pub fn check_health(scheduler: &Scheduler) -> ApiResult<()> {
    let limit = scheduler.settings().t_stuck;
    if let Some(age) = scheduler.metrics().step_age().filter(|&age| age > limit) {
        let seconds = age.as_secs();
        return Err(ApiError::unavailable(format!(
            "the model has been stuck in one step for {seconds} s"
        )));
    }
    if scheduler.is_running() {
        Ok(())
    } else {
        Err(ApiError::unavailable("the model has stopped; restart the server"))
    }
}

/// Handles `GET /ready`.
pub async fn ready(State(app): State<Shared>) -> Response {
    readiness(app.service.scheduler.is_open())
}

/// Returns the readiness response.
pub fn readiness(is_open: bool) -> Response {
    let status = if is_open { "ready" } else { "draining" };
    let code = if is_open {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (code, json(&json!({ "status": status }))).into_response()
}

/// Handles `GET /props`.
pub async fn props(State(app): State<Shared>) -> Response {
    json(&props_json(&app.service))
}

/// Returns the properties of a loaded model.
pub fn props_json(service: &ModelService) -> Json {
    let mut settings = sampler_json(&service.params.defaults.sampler);
    let limit = limit_json(service.max_tokens());
    settings.extend(["n_predict", "max_tokens"].map(|name| (name.to_owned(), limit.clone())));
    let text = |token: Option<u32>| token.map(|token| service.vocab().text(token).into_owned());
    json!({
        "default_generation_settings": {
            "n_ctx": service.n_ctx(),
            "params": settings,
        },
        "total_slots": service.scheduler.settings().n_parallel,
        "model_alias": service.params.name,
        "model_path": service.params.path,
        "chat_template": service.chat.template(),
        "chat_template_tool_problem": service.chat.tool_problem(),
        "bos_token": text(service.vocab().bos()),
        "eos_token": text(service.vocab().eos()),
        "modalities": { "vision": service.chat.reads(Medium::Image), "audio": service.reads_audio() },
        "media_marker": MEDIA_MARKER,
        "build_info": service.params.build,
        "is_sleeping": false,
    })
}

/// Header with the start of the counters in seconds since the Unix epoch, as in llama-server.
const START_TIME: HeaderName = HeaderName::from_static("process-start-time-unix");

/// Handles `GET /metrics` for a single model.
pub async fn metrics(State(app): State<Shared>) -> Response {
    metrics_of(&Measured::new(&app.service))
}

/// Counters and state of a model.
#[derive(Clone)]
pub struct Measured {
    name: String,
    metrics: Arc<Metrics>,
    gauges: Gauges,
}

impl Measured {
    /// Returns the current state of a model.
    pub fn new(service: &ModelService) -> Measured {
        Measured {
            name: service.params.name.clone(),
            metrics: service.scheduler.metrics().clone(),
            gauges: service.scheduler.gauges(),
        }
    }
}

/// Returns the metrics of the only model of a server.
pub fn metrics_of(model: &Measured) -> Response {
    page(std::slice::from_ref(model), false)
}

/// Returns the metrics of several models, with a `model` label on each line.
pub fn exposition(models: &[Measured]) -> Response {
    page(models, true)
}

/// State of one model at the time of the scrape.
struct Snapshot<'a> {
    /// Labels for llama-server's metrics and for vLLM's metrics.
    labels: [String; 2],
    metrics: &'a Metrics,
    gauges: Gauges,
    /// Rates since the last scrape.
    rates: Rates,
}

impl Snapshot<'_> {
    /// Returns `n` as a fraction of all cells.
    fn share(&self, n: usize) -> f64 {
        if self.gauges.is_limited {
            n as f64 / self.gauges.n_ctx.max(1) as f64
        } else {
            0.0
        }
    }
}

/// A metric of the Prometheus exposition.
struct Metric {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    value: fn(&Snapshot<'_>) -> f64,
}

const fn counter(name: &'static str, help: &'static str, value: fn(&Snapshot<'_>) -> f64) -> Metric {
    let kind = "counter";
    Metric {
        name,
        kind,
        help,
        value,
    }
}

const fn gauge(name: &'static str, help: &'static str, value: fn(&Snapshot<'_>) -> f64) -> Metric {
    let kind = "gauge";
    Metric {
        name,
        kind,
        help,
        value,
    }
}

/// Metrics under llama-server's names.
const LLAMACPP: &[Metric] = &[
    counter("llamacpp:prompt_tokens_total", "Prompt tokens computed.", |n| {
        count(&n.metrics.n_prompt)
    }),
    counter(
        "llamacpp:prompt_tokens_cached_total",
        "Prompt tokens found in the cache.",
        |n| count(&n.metrics.n_cached),
    ),
    counter(
        "llamacpp:prompt_seconds_total",
        "Time of steps that include prefill.",
        |n| seconds(&n.metrics.t_prompt),
    ),
    counter("llamacpp:tokens_predicted_total", "Generated tokens.", |n| {
        count(&n.metrics.n_generated)
    }),
    counter(
        "llamacpp:tokens_predicted_seconds_total",
        "Time of decode-only steps.",
        |n| seconds(&n.metrics.t_decode),
    ),
    counter("llamacpp:n_decode_total", "Calls of decode.", |n| {
        count(&n.metrics.n_decode)
    }),
    counter(
        "llamacpp:n_tokens_max",
        "Largest number of tokens in a sequence.",
        |n| count(&n.metrics.n_tokens_max),
    ),
    counter(
        "llamacpp:spec_decode_num_draft_tokens_total",
        "Drafted tokens that were verified.",
        |n| count(&n.metrics.n_drafts),
    ),
    counter(
        "llamacpp:spec_decode_num_accepted_tokens_total",
        "Drafted tokens that were accepted.",
        |n| count(&n.metrics.n_right),
    ),
    counter(
        "llamacpp:spec_decode_num_drafts_total",
        "Sequences of drafted tokens that were verified.",
        |n| count(&n.metrics.n_draft_sequences),
    ),
    counter("llamacpp:media_encoded_total", "Encoded images and audio files.", |n| {
        count(&n.metrics.n_media_encoded)
    }),
    counter(
        "llamacpp:media_cached_total",
        "Images and audio files found in the cache of encoded media.",
        |n| count(&n.metrics.n_media_cached),
    ),
    counter(
        "llamacpp:media_seconds_total",
        "Time spent encoding images and audio files.",
        |n| seconds(&n.metrics.t_media),
    ),
    gauge(
        "llamacpp:n_busy_slots_per_decode",
        "Mean number of sequences per decode call.",
        |n| count(&n.metrics.n_decoded_sequences) / count(&n.metrics.n_decode).max(1.0),
    ),
    gauge(
        "llamacpp:prompt_tokens_seconds",
        "Prompt tokens per second of prefill since the last scrape.",
        |n| n.rates.prompt,
    ),
    gauge(
        "llamacpp:predicted_tokens_seconds",
        "Generated tokens per second of decode since the last scrape.",
        |n| n.rates.generated,
    ),
    gauge(
        "llamacpp:kv_cache_usage_ratio",
        "Fraction of KV cache cells in use, including cached sequences.",
        |n| n.share(n.gauges.n_used),
    ),
    gauge("llamacpp:requests_processing", "Sequences in prefill or decode.", |n| {
        n.gauges.n_running as f64
    }),
    gauge("llamacpp:requests_deferred", "Queued requests.", |n| {
        n.gauges.n_waiting as f64
    }),
];

/// Metrics under vLLM's names, labeled with the model name.
const VLLM: &[Metric] = &[
    gauge("vllm:num_requests_running", "Sequences in prefill or decode.", |n| {
        n.gauges.n_running as f64
    }),
    gauge("vllm:num_requests_waiting", "Queued requests.", |n| {
        n.gauges.n_waiting as f64
    }),
    // Gateways avoid servers with a full cache. As in vLLM, evictable cells do not count.
    gauge(
        "vllm:kv_cache_usage_perc",
        "Fraction of KV cache cells used by running sequences (0 to 1).",
        |n| n.share(n.gauges.n_busy),
    ),
    counter("vllm:num_preemptions_total", "Preempted sequences.", |n| {
        count(&n.metrics.n_preempted)
    }),
    counter("vllm:prompt_tokens_total", "Prompt tokens of started requests.", |n| {
        count(&n.metrics.n_queried)
    }),
    counter("vllm:generation_tokens_total", "Generated tokens.", |n| {
        count(&n.metrics.n_generated)
    }),
    counter(
        "vllm:prefix_cache_queries_total",
        "Prompt tokens looked up in the prefix cache.",
        |n| count(&n.metrics.n_queried),
    ),
    counter(
        "vllm:prefix_cache_hits_total",
        "Prompt tokens found in the prefix cache.",
        |n| count(&n.metrics.n_cached),
    ),
    counter(
        "vllm:spec_decode_num_draft_tokens_total",
        "Drafted tokens that were verified.",
        |n| count(&n.metrics.n_drafts),
    ),
    counter(
        "vllm:spec_decode_num_accepted_tokens_total",
        "Drafted tokens that were accepted.",
        |n| count(&n.metrics.n_right),
    ),
];

fn count(counter: &Counter) -> f64 {
    counter.get() as f64
}

fn seconds(micros: &Counter) -> f64 {
    count(micros) / 1e6
}

/// Returns the labels of a model's metrics.
fn labels(name: &str, is_named: bool) -> [String; 2] {
    let name = name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    if is_named {
        [
            format!("model=\"{name}\""),
            format!("model=\"{name}\",model_name=\"{name}\""),
        ]
    } else {
        [String::new(), format!("model_name=\"{name}\"")]
    }
}

fn page(models: &[Measured], are_named: bool) -> Response {
    let models = models.iter().map(|model| Snapshot {
        labels: labels(&model.name, are_named),
        metrics: &model.metrics,
        gauges: model.gauges,
        rates: model.metrics.rates(),
    });
    let mut page = Exposition {
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
        "Time from a request to its first token.",
    );
    page.histogram(
        "vllm:inter_token_latency_seconds",
        |m| &m.between_tokens,
        "Time between consecutive tokens of a completion.",
    );
    page.histogram(
        "vllm:request_queue_time_seconds",
        |m| &m.queued,
        "Time from a request to the start of prefill.",
    );
    let started = page.models.iter().map(|now| now.metrics.start_time()).min();
    let headers = [
        (
            header::CONTENT_TYPE,
            "text/plain; version=0.0.4; charset=utf-8".to_owned(),
        ),
        (START_TIME, started.unwrap_or(0).to_string()),
    ];
    (headers, page.text).into_response()
}

struct Exposition<'a> {
    text: String,
    models: Vec<Snapshot<'a>>,
}

impl Exposition<'_> {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a `String` cannot fail.
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// Writes the samples of a metric for all models.
    fn lines(&mut self, name: &str, of: impl Fn(&Snapshot<'_>) -> Vec<(String, f64)>) {
        for (labels, value) in self.models.iter().flat_map(of) {
            let _ = if labels.is_empty() {
                writeln!(self.text, "{name} {value}")
            } else {
                writeln!(self.text, "{name}{{{labels}}} {value}")
            };
        }
    }

    /// Writes the finished completions by finish reason.
    fn ends(&mut self) {
        let name = "vllm:request_success_total";
        self.head(name, "counter", "Finished completions by finish reason.");
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

    /// Writes the cache configuration.
    fn layout(&mut self) {
        /// Cells per page of the engine's KV cache.
        const PAGE: usize = 64;
        let name = "vllm:cache_config_info";
        self.head(name, "gauge", "KV cache configuration.");
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
