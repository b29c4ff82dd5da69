//! Settings of a request in llama-server's format.

use engine::sample::{LogitBias, PARAMS, SamplerParams};
use serde_json::{Map, Value as Json, json};

use crate::api::{NO_LIMIT, name_of};
use crate::scheduler::{LogprobSource, Request};
use crate::service::ModelService;

/// Returns the sampling parameters, named as request fields.
pub fn sampler_json(params: &SamplerParams) -> Map<String, Json> {
    let named = PARAMS.iter().map(|def| {
        let text = (def.get)(params);
        let value = serde_json::from_str::<Json>(&text).ok().filter(Json::is_number);
        (name_of(def).to_owned(), value.unwrap_or(text.into()))
    });
    named.collect()
}

/// Returns a token limit; -1 means unlimited.
pub fn limit_json(limit: usize) -> Json {
    if limit == NO_LIMIT { json!(-1) } else { json!(limit) }
}

/// Returns the `generation_settings` of a request.
pub fn settings_json(service: &ModelService, request: &Request, is_stream: bool) -> Json {
    let mut settings = sampler_json(&request.sampler);
    let limit = limit_json(request.max_tokens.unwrap_or(service.max_tokens()));
    let n_probs = match request.logprob_source {
        LogprobSource::Ids => 0,
        _ => request.logprobs.unwrap_or(0),
    };
    let mut biases: Vec<Json> = request.sampler.logit_bias.iter().map(bias_json).collect();
    if request.ignore_eos {
        let vocab = service.vocab();
        let ends = (0..vocab.n_tokens()).filter(|&token| vocab.is_eog(token));
        biases.extend(ends.map(|token| json!({ "token": token, "bias": null })));
    }
    let adapters = request.lora.iter().flatten();
    let adapters = adapters.map(|(id, scale)| json!({ "id": id, "scale": scale }));
    let others = [
        ("n_predict", limit.clone()),
        ("max_tokens", limit),
        ("n_probs", n_probs.into()),
        (
            "post_sampling_probs",
            (request.logprob_source == LogprobSource::Samplers).into(),
        ),
        ("ignore_eos", request.ignore_eos.into()),
        ("stream", is_stream.into()),
        ("stop", request.stop.clone().into()),
        ("logit_bias", biases.into()),
        ("lora", adapters.collect::<Vec<Json>>().into()),
    ];
    settings.extend(others.map(|(name, value)| (name.to_owned(), value)));
    settings.into()
}

/// Formats a bias; JSON has no infinity, so the bias of a banned token is null.
fn bias_json(LogitBias { token, bias }: &LogitBias) -> Json {
    let bias = if bias.is_finite() { json!(bias) } else { Json::Null };
    json!({ "token": token, "bias": bias })
}
