//! All routes: one table, from which the router and `docs/server.md` come.

pub use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, post};

use crate::api::{ApiError, Field, GENERATING, STRUCTURE};
use crate::http::{Gate, Shared, guarded};
use crate::openapi::openapi;
use crate::{anthropic, native, ollama, openai, web};

/// Something that can be asked for. `S`: what its handler shares with others.
pub struct Route<S: 'static = Shared> {
    /// GET, POST or DELETE.
    pub method: &'static str,
    /// Where, the usual path first.
    pub paths: &'static [&'static str],
    /// What it does, in one sentence.
    pub doc: &'static str,
    /// Tables of the fields that it takes.
    pub fields: &'static [&'static [Field]],
    /// The fields of the sampler chain, too.
    pub sampling: bool,
    /// Parameters of the query: the name, what each may be, and what it does.
    pub query: &'static [(&'static str, &'static [&'static str], &'static str)],
    /// What answers.
    pub(crate) router: fn() -> MethodRouter<S>,
}

/// The routes.
pub const ROUTES: &[Route] = &[
    Route {
        method: "POST",
        paths: &["/v1/chat/completions", "/chat/completions"],
        doc: "Answers a conversation, as OpenAI's interface of that name.",
        fields: &[openai::CHAT_FIELDS, GENERATING, STRUCTURE],
        sampling: true,
        query: &[],
        router: || post(openai::chat),
    },
    Route {
        method: "POST",
        paths: &["/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"],
        doc: "Tells how many tokens its prompt has; takes the same fields.",
        fields: &[],
        sampling: false,
        query: &[],
        router: || post(openai::count_chat),
    },
    Route {
        method: "POST",
        paths: &["/v1/chat/completions/control"],
        doc: "Ends what is being thought in an answer under way, as llama-server's interface of that name; the answer follows.",
        fields: &[openai::CONTROL_FIELDS],
        sampling: false,
        query: &[],
        router: || post(openai::control),
    },
    Route {
        method: "POST",
        paths: &["/v1/completions"],
        doc: "Continues texts, as OpenAI's interface of that name.",
        fields: &[openai::COMPLETION_FIELDS, GENERATING, STRUCTURE],
        sampling: true,
        query: &[],
        router: || post(openai::completions),
    },
    Route {
        method: "POST",
        paths: &["/v1/responses", "/responses"],
        doc: "Answers a conversation, as OpenAI's interface of that name.",
        fields: &[openai::RESPONSE_FIELDS, GENERATING],
        sampling: true,
        query: &[],
        router: || post(openai::responses),
    },
    Route {
        method: "POST",
        paths: &["/v1/responses/input_tokens", "/responses/input_tokens"],
        doc: "Tells how many tokens its prompt has; takes the same fields.",
        fields: &[],
        sampling: false,
        query: &[],
        router: || post(openai::count_response),
    },
    Route {
        method: "GET",
        paths: &["/v1/responses/{id}"],
        doc: "Tells a response again that is kept.",
        fields: &[],
        sampling: false,
        query: &[],
        router: || get(openai::response),
    },
    Route {
        method: "DELETE",
        paths: &["/v1/responses/{id}"],
        doc: "Forgets it.",
        fields: &[],
        sampling: false,
        query: &[],
        router: || delete(openai::forget),
    },
    Route {
        method: "POST",
        paths: &["/v1/embeddings", "/embeddings"],
        doc: "Turns texts into vectors of length one.",
        fields: &[openai::EMBEDDING_FIELDS],
        sampling: false,
        query: &[],
        router: || post(openai::embeddings),
    },
    Route {
        method: "GET",
        paths: &["/v1/models", "/models"],
        doc: "Lists the model that is served, or all of several, with the length of the context of each that is loaded.",
        fields: &[],
        sampling: false,
        query: &[],
        router: || get(openai::models),
    },
    Route {
        method: "GET",
        paths: &["/v1/models/{name}"],
        doc: "The same of one by name.",
        fields: &[],
        sampling: false,
        query: &[],
        router: || get(openai::model),
    },
    Route {
        method: "POST",
        paths: &["/v1/messages"],
        doc: "Answers a conversation, as Anthropic's interface of that name.",
        fields: &[anthropic::FIELDS, GENERATING, STRUCTURE],
        sampling: true,
        query: &[],
        router: || post(anthropic::messages),
    },
    Route {
        method: "POST",
        paths: &["/v1/messages/count_tokens"],
        doc: "Tells how many tokens its prompt has; takes the same fields.",
        fields: &[],
        sampling: false,
        query: &[],
        router: || post(anthropic::count_tokens),
    },
    Route {
        method: "POST",
        paths: &["/api/chat"],
        doc: "Answers a conversation, as Ollama's interface of that name.",
        fields: &[ollama::CHAT_FIELDS],
        sampling: false,
        query: &[],
        router: || post(ollama::chat),
    },
    Route {
        method: "POST",
        paths: &["/api/generate"],
        doc: "Answers a prompt, as Ollama's interface of that name.",
        fields: &[ollama::GENERATE_FIELDS],
        sampling: false,
        query: &[],
        router: || post(ollama::generate),
    },
    Route {
        method: "POST",
        paths: &["/api/embed"],
        doc: "Turns texts into vectors, as Ollama's interface of that name.",
        fields: &[ollama::EMBED_FIELDS],
        sampling: false,
        query: &[],
        router: || post(ollama::embed),
    },
    Route {
        method: "POST",
        paths: &["/api/embeddings"],
        doc: "Turns a text into a vector, as Ollama's interface had it before.",
        fields: &[ollama::EMBEDDINGS_FIELDS],
        sampling: false,
        query: &[],
        router: || post(ollama::embeddings),
    },
    Route {
        method: "GET",
        paths: &["/api/tags"],
        doc: "Lists the model or models, as Ollama's interface of that name.",
        fields: &[],
        sampling: false,
        query: &[],
        router: || get(ollama::tags),
    },
    Route {
        method: "POST",
        paths: &["/api/show"],
        doc: "Tells what the model is, as Ollama's interface of that name.",
        fields: &[ollama::SHOW_FIELDS],
        sampling: false,
        query: &[],
        router: || post(ollama::show),
    },
    Route {
        method: "GET",
        paths: &["/api/ps"],
        doc: "Lists those that are loaded.",
        fields: &[],
        sampling: false,
        query: &[],
        router: || get(ollama::ps),
    },
    Route {
        method: "GET",
        paths: &["/api/version"],
        doc: "Tells which version of Ollama's interface this is.",
        fields: &[],
        sampling: false,
        query: &[],
        router: || get(ollama::version),
    },
    Route {
        method: "POST",
        paths: &["/completion", "/completions"],
        doc: "Continues a text, as llama-server's interface of that name.",
        fields: &[native::COMPLETION_FIELDS, GENERATING, STRUCTURE],
        sampling: true,
        query: &[],
        router: || post(native::completion),
    },
    Route {
        method: "POST",
        paths: &["/infill"],
        doc: "Fills a gap between two texts, as llama-server's interface of that name; `prompt` is the beginning of what fills it.",
        fields: &[native::COMPLETION_FIELDS, native::INFILL_FIELDS, GENERATING, STRUCTURE],
        sampling: true,
        query: &[],
        router: || post(native::infill),
    },
    Route {
        method: "POST",
        paths: &["/embedding"],
        doc: "Turns texts into vectors, as llama-server's interface of that name.",
        fields: &[native::EMBEDDING_FIELDS],
        sampling: false,
        query: &[],
        router: || post(native::embedding),
    },
    Route {
        method: "POST",
        paths: &["/v1/rerank", "/rerank", "/v1/reranking", "/reranking"],
        doc: "Rates documents by a question, with a model that does.",
        fields: &[native::RERANK_FIELDS],
        sampling: false,
        query: &[],
        router: || post(native::rerank),
    },
    Route {
        method: "POST",
        paths: &["/tokenize"],
        doc: "Turns a text into tokens.",
        fields: &[native::TOKENIZE_FIELDS],
        sampling: false,
        query: &[],
        router: || post(native::tokenize),
    },
    Route {
        method: "POST",
        paths: &["/detokenize"],
        doc: "Turns tokens into a text.",
        fields: &[native::DETOKENIZE_FIELDS],
        sampling: false,
        query: &[],
        router: || post(native::detokenize),
    },
    Route {
        method: "GET",
        paths: &["/tokenizer_info"],
        doc: "Tells names of special tokens, the length of the context and the chat template, as vLLM does.",
        fields: &[],
        sampling: false,
        query: &[],
        router: || get(native::tokenizer_info),
    },
    Route {
        method: "POST",
        paths: &["/apply-template"],
        doc: "Tells the prompt that messages become.",
        fields: &[native::TEMPLATE_FIELDS],
        sampling: false,
        query: &[],
        router: || post(native::apply_template),
    },
    Route {
        method: "GET",
        paths: &["/health", "/v1/health"],
        doc: "Status 200 as long as the model is computed where there is something to compute; for everybody.",
        fields: &[],
        sampling: false,
        query: &[],
        router: || get(native::health),
    },
    Route {
        method: "GET",
        paths: &["/ready"],
        doc: "Status 200 as long as new requests are taken; for everybody.",
        fields: &[],
        sampling: false,
        query: &[],
        router: || get(native::ready),
    },
    Route {
        method: "GET",
        paths: &["/props"],
        doc: "Tells default settings, the chat template and what the model takes.",
        fields: &[],
        sampling: false,
        query: &[],
        router: || get(native::props),
    },
    Route {
        method: "GET",
        paths: &["/slots"],
        doc: "Tells of sequences: which are worked on, and how many tokens each holds.",
        fields: &[],
        sampling: false,
        query: &[],
        router: || get(native::slots),
    },
    Route {
        method: "POST",
        paths: &["/slots/{id}"],
        doc: "With `?action=save`, `restore` or `erase`: writes what a sequence holds to a file, reads it, or forgets it.",
        fields: &[native::SLOT_FIELDS],
        sampling: false,
        query: &[("action", &["save", "restore", "erase"], "What is to be done.")],
        router: || post(native::slot),
    },
    Route {
        method: "GET",
        paths: &["/lora-adapters"],
        doc: "Lists the adapters of `--lora` and their factors.",
        fields: &[],
        sampling: false,
        query: &[],
        router: || get(native::adapters),
    },
    Route {
        method: "POST",
        paths: &["/lora-adapters"],
        doc: "Changes factors: a list of objects with `id` and `scale`; adapters that are not named get 0. Answers under way keep theirs.",
        fields: &[],
        sampling: false,
        query: &[],
        router: || post(native::rescale),
    },
    Route {
        method: "GET",
        paths: &["/openapi.json"],
        doc: "Describes all of this for programs, as OpenAPI 3.1 has it.",
        fields: &[],
        sampling: false,
        query: &[],
        router: || get(openapi),
    },
    Route {
        method: "GET",
        paths: &["/metrics"],
        doc: "Counters for Prometheus, under the names of llama-server and those of vLLM that gateways look for.",
        fields: &[],
        sampling: false,
        query: &[],
        router: || get(native::metrics),
    },
];

/// The page for browsers, which can be left out.
pub const PAGE: &[Route<()>] = &[
    Route {
        method: "GET",
        paths: &["/", "/index.html"],
        doc: "A page to chat with the model in a browser; for everybody, and `--no-webui` leaves it out.",
        fields: &[],
        sampling: false,
        query: &[],
        router: || get(web::file),
    },
    Route {
        method: "GET",
        paths: &["/web/{*file}"],
        doc: "What the page is made of; for everybody.",
        fields: &[],
        sampling: false,
        query: &[],
        router: || get(web::file),
    },
];

/// The router of a model.
pub fn router(app: Shared, gate: Gate) -> Router {
    guarded(with_page(of_model(app), &gate), gate)
}

/// The same without what is asked of every request.
pub fn of_model(app: Shared) -> Router {
    with(Router::new(), ROUTES).with_state(app)
}

/// Adds the page, unless it is left out.
pub fn with_page(routes: Router, gate: &Gate) -> Router {
    with(routes, if gate.page { PAGE } else { &[] })
}

fn with<S: Clone + Send + Sync + 'static>(router: Router<S>, routes: &[Route<S>]) -> Router<S> {
    let paths = routes
        .iter()
        .flat_map(|route| route.paths.iter().map(|path| (path, route.router)));
    paths.fold(router, |router, (path, handler)| router.route(path, handler()))
}

/// An error in the form of the interface that a path belongs to.
pub fn refusal(path: &str, error: &ApiError, request_id: &str) -> Response {
    if path.starts_with("/v1/messages") {
        error.response(&anthropic::error_json(error, request_id))
    } else if path.starts_with("/api/") {
        error.response(&ollama::error_json(error))
    } else {
        error.clone().into_response()
    }
}
