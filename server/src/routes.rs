//! The route table, from which the router, the OpenAPI document and `docs/server.md` are generated.

pub use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, post};

use crate::api::{ApiError, Field, GENERATION_FIELDS, STRUCTURE_FIELDS};
use crate::http::{AccessPolicy, Shared, guarded};
use crate::openapi::openapi;
use crate::{anthropic, native, ollama, openai, web};

/// A route: one method and its paths. `S` is the state that the handler receives.
pub struct Route<S: 'static = Shared> {
    /// HTTP method of the route: `GET`, `POST` or `DELETE`.
    pub method: &'static str,
    /// Paths of the route; the canonical path is first.
    pub paths: &'static [&'static str],
    /// Summary of the route in one sentence.
    pub doc: &'static str,
    /// Tables of the accepted body fields.
    pub fields: &'static [&'static [Field]],
    /// True if the sampling parameters ([`engine::sample::PARAMS`]) are accepted, too.
    pub sampling: bool,
    /// Query parameters: name, allowed values, description.
    pub query: &'static [(&'static str, &'static [&'static str], &'static str)],
    /// Function that creates the handler.
    pub(crate) router: fn() -> MethodRouter<S>,
}

/// Routes of a single model.
pub const ROUTES: &[Route] = &[
    Route {
        method: "POST",
        paths: &["/v1/chat/completions", "/chat/completions"],
        doc: "Creates a chat completion (OpenAI).",
        fields: &[openai::CHAT_FIELDS, GENERATION_FIELDS, STRUCTURE_FIELDS],
        sampling: true,
        query: &[],
        router: || post(openai::chat),
    },
    Route {
        method: "POST",
        paths: &["/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"],
        doc: "Counts the prompt tokens of a chat completion request.",
        fields: &[],
        sampling: false,
        query: &[],
        router: || post(openai::count_chat),
    },
    Route {
        method: "POST",
        paths: &["/v1/chat/completions/control"],
        doc: "Ends the reasoning of a running chat completion (llama-server).",
        fields: &[openai::CONTROL_FIELDS],
        sampling: false,
        query: &[],
        router: || post(openai::control),
    },
    Route {
        method: "POST",
        paths: &["/v1/completions"],
        doc: "Creates text completions (OpenAI).",
        fields: &[openai::COMPLETION_FIELDS, GENERATION_FIELDS, STRUCTURE_FIELDS],
        sampling: true,
        query: &[],
        router: || post(openai::completions),
    },
    Route {
        method: "POST",
        paths: &["/v1/responses", "/responses"],
        doc: "Creates a response (OpenAI).",
        fields: &[openai::RESPONSE_FIELDS, GENERATION_FIELDS],
        sampling: true,
        query: &[],
        router: || post(openai::responses),
    },
    Route {
        method: "POST",
        paths: &["/v1/responses/input_tokens", "/responses/input_tokens"],
        doc: "Counts the prompt tokens of a response request.",
        fields: &[],
        sampling: false,
        query: &[],
        router: || post(openai::count_response),
    },
    Route {
        method: "GET",
        paths: &["/v1/responses/{id}"],
        doc: "Returns a stored response.",
        fields: &[],
        sampling: false,
        query: &[],
        router: || get(openai::response),
    },
    Route {
        method: "DELETE",
        paths: &["/v1/responses/{id}"],
        doc: "Deletes a stored response.",
        fields: &[],
        sampling: false,
        query: &[],
        router: || delete(openai::forget),
    },
    Route {
        method: "POST",
        paths: &["/v1/embeddings", "/embeddings"],
        doc: "Creates embeddings (OpenAI), normalized to length 1.",
        fields: &[openai::EMBEDDING_FIELDS],
        sampling: false,
        query: &[],
        router: || post(openai::embeddings),
    },
    Route {
        method: "GET",
        paths: &["/v1/models", "/models"],
        doc: "Lists the served models, with the context length of each loaded model.",
        fields: &[],
        sampling: false,
        query: &[],
        router: || get(openai::models),
    },
    Route {
        method: "GET",
        paths: &["/v1/models/{name}"],
        doc: "Describes one model.",
        fields: &[],
        sampling: false,
        query: &[],
        router: || get(openai::model),
    },
    Route {
        method: "POST",
        paths: &["/v1/messages"],
        doc: "Creates a message (Anthropic).",
        fields: &[anthropic::FIELDS, GENERATION_FIELDS, STRUCTURE_FIELDS],
        sampling: true,
        query: &[],
        router: || post(anthropic::messages),
    },
    Route {
        method: "POST",
        paths: &["/v1/messages/count_tokens"],
        doc: "Counts the prompt tokens of a message request.",
        fields: &[],
        sampling: false,
        query: &[],
        router: || post(anthropic::count_tokens),
    },
    Route {
        method: "POST",
        paths: &["/api/chat"],
        doc: "Creates a chat completion (Ollama).",
        fields: &[ollama::CHAT_FIELDS],
        sampling: false,
        query: &[],
        router: || post(ollama::chat),
    },
    Route {
        method: "POST",
        paths: &["/api/generate"],
        doc: "Creates a text completion (Ollama).",
        fields: &[ollama::GENERATE_FIELDS],
        sampling: false,
        query: &[],
        router: || post(ollama::generate),
    },
    Route {
        method: "POST",
        paths: &["/api/embed"],
        doc: "Creates embeddings (Ollama).",
        fields: &[ollama::EMBED_FIELDS],
        sampling: false,
        query: &[],
        router: || post(ollama::embed),
    },
    Route {
        method: "POST",
        paths: &["/api/embeddings"],
        doc: "Creates one embedding (Ollama, deprecated form).",
        fields: &[ollama::EMBEDDINGS_FIELDS],
        sampling: false,
        query: &[],
        router: || post(ollama::embeddings),
    },
    Route {
        method: "GET",
        paths: &["/api/tags"],
        doc: "Lists the served models (Ollama).",
        fields: &[],
        sampling: false,
        query: &[],
        router: || get(ollama::tags),
    },
    Route {
        method: "POST",
        paths: &["/api/show"],
        doc: "Describes one model (Ollama).",
        fields: &[ollama::SHOW_FIELDS],
        sampling: false,
        query: &[],
        router: || post(ollama::show),
    },
    Route {
        method: "GET",
        paths: &["/api/ps"],
        doc: "Lists the loaded models (Ollama).",
        fields: &[],
        sampling: false,
        query: &[],
        router: || get(ollama::ps),
    },
    Route {
        method: "GET",
        paths: &["/api/version"],
        doc: "Returns the version of the Ollama API that this server implements.",
        fields: &[],
        sampling: false,
        query: &[],
        router: || get(ollama::version),
    },
    Route {
        method: "POST",
        paths: &["/completion", "/completions"],
        doc: "Creates a text completion (llama-server).",
        fields: &[native::COMPLETION_FIELDS, GENERATION_FIELDS, STRUCTURE_FIELDS],
        sampling: true,
        query: &[],
        router: || post(native::completion),
    },
    Route {
        method: "POST",
        paths: &["/infill"],
        doc: "Fills in text between a prefix and a suffix (llama-server). `prompt` is the start of the insertion.",
        fields: &[
            native::COMPLETION_FIELDS,
            native::INFILL_FIELDS,
            GENERATION_FIELDS,
            STRUCTURE_FIELDS,
        ],
        sampling: true,
        query: &[],
        router: || post(native::infill),
    },
    Route {
        method: "POST",
        paths: &["/embedding"],
        doc: "Creates embeddings (llama-server).",
        fields: &[native::EMBEDDING_FIELDS],
        sampling: false,
        query: &[],
        router: || post(native::embedding),
    },
    Route {
        method: "POST",
        paths: &["/v1/rerank", "/rerank", "/v1/reranking", "/reranking"],
        doc: "Scores documents against a query; requires a reranking model.",
        fields: &[native::RERANK_FIELDS],
        sampling: false,
        query: &[],
        router: || post(native::rerank),
    },
    Route {
        method: "POST",
        paths: &["/tokenize"],
        doc: "Tokenizes a string.",
        fields: &[native::TOKENIZE_FIELDS],
        sampling: false,
        query: &[],
        router: || post(native::tokenize),
    },
    Route {
        method: "POST",
        paths: &["/detokenize"],
        doc: "Converts tokens to text.",
        fields: &[native::DETOKENIZE_FIELDS],
        sampling: false,
        query: &[],
        router: || post(native::detokenize),
    },
    Route {
        method: "GET",
        paths: &["/tokenizer_info"],
        doc: "Returns special tokens, context length and chat template (vLLM).",
        fields: &[],
        sampling: false,
        query: &[],
        router: || get(native::tokenizer_info),
    },
    Route {
        method: "POST",
        paths: &["/apply-template"],
        doc: "Renders messages with the chat template and returns the prompt.",
        fields: &[native::TEMPLATE_FIELDS],
        sampling: false,
        query: &[],
        router: || post(native::apply_template),
    },
    Route {
        method: "GET",
        paths: &["/health", "/v1/health"],
        doc: "Liveness: status 200 while the model makes progress or is idle; needs no API key.",
        fields: &[],
        sampling: false,
        query: &[],
        router: || get(native::health),
    },
    Route {
        method: "GET",
        paths: &["/ready"],
        doc: "Readiness: status 200 while new requests are accepted; needs no API key.",
        fields: &[],
        sampling: false,
        query: &[],
        router: || get(native::ready),
    },
    Route {
        method: "GET",
        paths: &["/props"],
        doc: "Returns default settings, the chat template and model properties.",
        fields: &[],
        sampling: false,
        query: &[],
        router: || get(native::props),
    },
    Route {
        method: "GET",
        paths: &["/slots"],
        doc: "Lists the slots with their state and cached tokens.",
        fields: &[],
        sampling: false,
        query: &[],
        router: || get(native::slots),
    },
    Route {
        method: "POST",
        paths: &["/slots/{id}"],
        doc: "Runs `?action=save`, `restore` or `erase` on the cached tokens of a slot.",
        fields: &[native::SLOT_FIELDS],
        sampling: false,
        query: &[("action", &["save", "restore", "erase"], "Operation on the slot.")],
        router: || post(native::slot),
    },
    Route {
        method: "GET",
        paths: &["/lora-adapters"],
        doc: "Lists the LoRA adapters (`--lora`) and their scales.",
        fields: &[],
        sampling: false,
        query: &[],
        router: || get(native::adapters),
    },
    Route {
        method: "POST",
        paths: &["/lora-adapters"],
        doc: "Sets adapter scales: a list of objects with `id` and `scale`. Omitted adapters get scale 0.",
        fields: &[],
        sampling: false,
        query: &[],
        router: || post(native::set_adapter_scales),
    },
    Route {
        method: "GET",
        paths: &["/openapi.json"],
        doc: "Returns this API as an OpenAPI 3.1 document.",
        fields: &[],
        sampling: false,
        query: &[],
        router: || get(openapi),
    },
    Route {
        method: "GET",
        paths: &["/metrics"],
        doc: "Returns Prometheus metrics under the names of llama-server and vLLM.",
        fields: &[],
        sampling: false,
        query: &[],
        router: || get(native::metrics),
    },
];

/// Routes of the web UI (`--no-webui` disables them).
pub const PAGE: &[Route<()>] = &[
    Route {
        method: "GET",
        paths: &["/", "/index.html"],
        doc: "Web UI for chat; needs no API key, `--no-webui` disables it.",
        fields: &[],
        sampling: false,
        query: &[],
        router: || get(web::file),
    },
    Route {
        method: "GET",
        paths: &["/web/{*file}"],
        doc: "Assets of the web UI; needs no API key.",
        fields: &[],
        sampling: false,
        query: &[],
        router: || get(web::file),
    },
];

/// Returns the complete router of a single model.
pub fn router(app: Shared, policy: AccessPolicy) -> Router {
    guarded(with_page(model_routes(app), &policy), policy)
}

/// Returns the routes of a model, without authentication and the other checks that apply to every request.
pub fn model_routes(app: Shared) -> Router {
    with(Router::new(), ROUTES).with_state(app)
}

/// Adds the web UI unless the policy disables it.
pub fn with_page(routes: Router, policy: &AccessPolicy) -> Router {
    with(routes, if policy.page { PAGE } else { &[] })
}

fn with<S: Clone + Send + Sync + 'static>(router: Router<S>, routes: &[Route<S>]) -> Router<S> {
    let paths = routes
        .iter()
        .flat_map(|route| route.paths.iter().map(|path| (path, route.router)));
    paths.fold(router, |router, (path, handler)| router.route(path, handler()))
}

/// Returns an error response in the format of the API that `path` belongs to.
pub fn refusal(path: &str, error: &ApiError, request_id: &str) -> Response {
    if path.starts_with("/v1/messages") {
        error.response(&anthropic::error_json(error, request_id))
    } else if path.starts_with("/api/") {
        error.response(&ollama::error_json(error))
    } else {
        error.clone().into_response()
    }
}
