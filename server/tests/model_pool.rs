//! Several models behind one address.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use engine::gguf::Gguf;
use http_body_util::BodyExt;
use serde_json::{Value as Json, json};
use server::guard::AccessPolicy;
use server::model_pool::{LazyDownload, ModelEntry, ModelPool, ModelPoolParams};
use tower::ServiceExt;

use crate::common::{Options, app};

/// Allowed origin.
const ORIGIN: &str = "https://app.example";

/// Maximum size of all loaded models.
const MAX_BYTES: u64 = 1 << 40;

/// Server with three models and an invalid model file.
struct Models {
    pool: Arc<ModelPool>,
    runtime: tokio::runtime::Runtime,
    n_loads: Arc<AtomicUsize>,
    order: Arc<Mutex<Vec<String>>>,
    keys: Vec<String>,
    _folder: tempfile::TempDir,
}

impl Models {
    fn new(max_loaded: usize, keys: &[&str]) -> Models {
        Models::with(max_loaded, keys, true)
    }

    fn with(max_loaded: usize, keys: &[&str], autoload: bool) -> Models {
        Models::of(max_loaded, keys, autoload, None)
    }

    /// Unloads models after `ms` milliseconds without requests.
    fn sleeping(ms: u64) -> Models {
        Models::idling(3, &[], true, None, Some(Duration::from_millis(ms)))
    }

    /// Creates the server with an additional model.
    fn of(max_loaded: usize, keys: &[&str], autoload: bool, more: Option<ModelEntry>) -> Models {
        Models::idling(max_loaded, keys, autoload, more, None)
    }

    fn idling(
        max_loaded: usize,
        keys: &[&str],
        autoload: bool,
        more: Option<ModelEntry>,
        t_idle: Option<Duration>,
    ) -> Models {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = |name: &str| folder.path().join(format!("{name}.gguf"));
        for name in ["a", "b", "c"] {
            std::fs::write(path(name), tests::text_model("llama", Some(crate::common::TEMPLATE)))
                .expect("writing a model");
        }
        std::fs::write(path("bad"), b"no model").expect("writing a file");
        let models = ["a", "b", "c", "bad"].map(|name| ModelEntry {
            name: name.to_owned(),
            aliases: vec![format!("{name}:latest")],
            tags: vec!["tiny".to_owned()],
            path: path(name),
            n_bytes: std::fs::metadata(path(name)).expect("a file").len(),
            is_pinned: name == "a",
            download: None,
        });
        let (n_loads, order): (Arc<AtomicUsize>, Arc<Mutex<Vec<String>>>) = Default::default();
        let (n, loaded) = (n_loads.clone(), order.clone());
        let load = move |model_entry: &ModelEntry| {
            n.fetch_add(1, Ordering::Relaxed);
            loaded.lock().unwrap().push(model_entry.name.clone());
            app(&Options::default(), Path::new(&model_entry.path), &model_entry.name)
        };
        let params = ModelPoolParams {
            models: models.into_iter().chain(more).collect(),
            max_loaded,
            max_bytes: MAX_BYTES,
            t_wait: Duration::from_millis(500),
            t_idle,
            autoload,
            build: "test".to_owned(),
        };
        let read_header =
            |model_entry: &ModelEntry| Gguf::open_header(&model_entry.path).map_err(|error| error.to_string());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        Models {
            pool: ModelPool::new(params, Box::new(load), Box::new(read_header)),
            runtime,
            n_loads,
            order,
            keys: keys.iter().map(|&key| key.to_owned()).collect(),
            _folder: folder,
        }
    }

    fn policy(&self) -> AccessPolicy {
        AccessPolicy {
            keys: self.keys.clone(),
            page: true,
            origins: vec![ORIGIN.to_owned()],
            is_public: false,
            logs_requests: false,
            ..AccessPolicy::default()
        }
    }

    fn send(&self, method: &str, path: &str, body: &str) -> (u16, Json) {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .body(Body::from(body.to_owned()))
            .unwrap();
        let routes = self.pool.routes(self.policy());
        self.runtime.block_on(async {
            let response = routes.oneshot(request).await.unwrap();
            let status = response.status().as_u16();
            let bytes = response.into_body().collect().await.unwrap().to_bytes();
            (status, serde_json::from_slice(&bytes).unwrap_or(Json::Null))
        })
    }

    fn ask(&self, model: &str) -> (u16, Json) {
        self.send(
            "POST",
            "/v1/completions",
            &json!({"model": model, "prompt": "hello", "max_tokens": 3}).to_string(),
        )
    }
}

#[test]
fn model_is_loaded_on_demand_and_lru_unloaded() {
    let models = Models::new(2, &[]);
    for (name, n_loads) in [("a", 1), ("a", 1), ("b", 2), ("a", 2), ("c", 3), ("a", 3), ("b", 4)] {
        let (status, answer) = models.ask(name);
        assert_eq!((status, &answer["model"]), (200, &json!(name)), "{answer}");
        assert_eq!(models.n_loads.load(Ordering::Relaxed), n_loads, "{name}");
    }
    // The pinned model was not unloaded.
    assert_eq!(*models.order.lock().unwrap(), ["a", "b", "c", "b"]);
    let (_, list) = models.send("GET", "/v1/models", "");
    let status = |name: &str| {
        list["data"]
            .as_array()
            .unwrap()
            .iter()
            .find(|m| m["id"] == name)
            .unwrap()["status"]["value"]
            .clone()
    };
    assert_eq!(
        ["a", "b", "c", "bad"].map(status),
        ["loaded", "loaded", "unloaded", "failed"]
    );
    let of = |name: &str| models.send("GET", &format!("/v1/models/{name}"), "").1;
    assert_eq!(of("a")["capabilities"], json!(["completion", "embedding"]));
    assert!(of("a")["max_model_len"].is_number() && of("c")["meta"]["n_ctx_train"].is_number());
}

#[test]
fn invalid_model_file_fails_only_its_requests() {
    let models = Models::new(2, &[]);
    assert_eq!(models.ask("a").0, 200);
    let (status, error) = models.ask("bad");
    assert_eq!(status, 422);
    assert!(
        error["error"]["message"]
            .as_str()
            .unwrap()
            .contains("cannot load the model \"bad\""),
        "{error}"
    );
    let (status, error) = models.ask("unheard-of");
    assert_eq!((status, &error["error"]["code"]), (404, &json!("model_not_found")));
    assert_eq!((models.ask("a").0, models.send("GET", "/health", "").0), (200, 200));
    // Requests without a model name use the pinned model.
    assert_eq!(
        models
            .send("POST", "/v1/completions", "{\"prompt\": \"a\", \"max_tokens\": 1}")
            .1["model"],
        "a"
    );
    assert_eq!(models.send("POST", "/v1/completions", "no JSON").0, 400);
    assert_eq!(models.send("GET", "/props?model=a", "").1["model_alias"], "a");
    // Reading state does not load a model.
    let n_loads = models.n_loads.load(Ordering::Relaxed);
    let (status, error) = models.send("GET", "/props?model=b", "");
    assert_eq!((status, &error["error"]["code"]), (503, &json!("model_not_loaded")));
    assert_eq!(models.send("GET", "/slots?model=nobody", "").0, 404);
    for path in [
        "/",
        "/web/main.js",
        "/v1/models",
        "/ready",
        "/api/tags",
        "/api/version",
        "/openapi.json",
    ] {
        assert_eq!(models.send("GET", path, "").0, 200, "{path}");
    }
    assert_eq!(models.send("POST", "/no-such-route", "{\"model\": \"b\"}").0, 404);
    assert_eq!(models.n_loads.load(Ordering::Relaxed), n_loads);
}

#[test]
fn model_in_use_is_not_unloaded() {
    let models = Models::new(1, &[]);
    let body =
        json!({"model": "b", "prompt": "hello", "stream": true, "ignore_eos": true, "max_tokens": 900}).to_string();
    let request = Request::builder()
        .method("POST")
        .uri("/v1/completions")
        .body(Body::from(body))
        .unwrap();
    let response = models
        .runtime
        .block_on(models.pool.routes(models.policy()).oneshot(request))
        .unwrap();
    let mut response_body = response.into_body();
    models
        .runtime
        .block_on(response_body.frame())
        .expect("a piece")
        .expect("the first part of the body");
    let (status, error) = models.ask("c");
    assert_eq!(status, 503, "{error}");
    let of_c = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| models.ask("c"));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!waiting.is_finished(), "the request waits for the model in use");
        drop(response_body);
        waiting.join().unwrap()
    });
    assert_eq!(of_c.1["model"], "c", "{of_c:?}");
    // Model a is pinned.
    assert_eq!(models.ask("a").0, 200);
    let start = std::time::Instant::now();
    let (status, error) = models.ask("c");
    assert!(
        status == 503 && error.to_string().contains("pinned"),
        "{status} {error}"
    );
    assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
}

/// A model that needs the place of two models evicts neither of them while one is in use.
#[test]
fn model_is_unloaded_only_if_that_makes_enough_place() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let path = folder.path().join("large.gguf");
    std::fs::write(&path, tests::text_model("llama", Some(crate::common::TEMPLATE))).expect("writing a model");
    let large = ModelEntry {
        name: "large".to_owned(),
        aliases: Vec::new(),
        tags: Vec::new(),
        path,
        n_bytes: MAX_BYTES,
        is_pinned: false,
        download: None,
    };
    let models = Models::of(3, &[], true, Some(large));
    assert_eq!(models.ask("c").0, 200);
    let body =
        json!({"model": "b", "prompt": "hello", "stream": true, "ignore_eos": true, "max_tokens": 900}).to_string();
    let request = Request::builder().method("POST").uri("/v1/completions");
    let routes = models.pool.routes(models.policy());
    let response = routes.oneshot(request.body(Body::from(body)).unwrap());
    let response = models.runtime.block_on(response).unwrap();
    let (status, error) = models.ask("large");
    assert!(
        status == 503 && error.to_string().contains("in use"),
        "{status} {error}"
    );
    let loaded = || models.send("GET", "/api/ps", "").1["models"].as_array().unwrap().len();
    assert_eq!(loaded(), 2, "the idle model stays loaded");
    drop(response);
    assert_eq!((models.ask("large").0, loaded()), (200, 1));
    assert_eq!(*models.order.lock().unwrap(), ["c", "b", "large"]);
}

#[test]
fn request_without_key_loads_no_model() {
    let models = Models::new(2, &["secret"]);
    assert_eq!(models.ask("b").0, 401);
    assert_eq!(models.n_loads.load(Ordering::Relaxed), 0);
    assert_eq!(
        (
            models.send("GET", "/v1/models", "").0,
            models.send("GET", "/health", "").0
        ),
        (401, 200)
    );
}

#[test]
fn middleware_applies_to_model_pool() {
    let models = Models::new(2, &["secret"]);
    assert_eq!(
        ["/", "/web/main.js"].map(|path| models.send("GET", path, "").0),
        [200; 2]
    );
    let sent = |method: &str, headers: &[(&str, &str)]| {
        let mut request = Request::builder().method(method).uri("/v1/models");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let routes = models.pool.routes(models.policy());
        let response = routes.oneshot(request.body(Body::empty()).unwrap());
        models.runtime.block_on(response).unwrap()
    };
    let key = ("Authorization", "Bearer secret");
    let response = sent("GET", &[key, ("Origin", ORIGIN), ("X-Request-Id", "mine")]);
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["access-control-allow-origin"], ORIGIN);
    assert_eq!(response.headers()["x-request-id"], "mine");
    assert_eq!(sent("GET", &[key, ("Origin", "https://evil.example")]).status(), 403);
    let preflight = [("Origin", ORIGIN), ("Access-Control-Request-Method", "POST")];
    assert_eq!(sent("OPTIONS", &preflight).status(), 204);
    // Path parameters survive the nested routers.
    let request = json!({"model": "b", "prompt": "hello", "max_tokens": 1}).to_string();
    let open = Models::new(2, &[]);
    assert_eq!(open.send("POST", "/v1/completions", &request).0, 200);
    assert_eq!(open.send("POST", "/slots/0?action=erase&model=b", "").0, 200);
    open.pool.close();
    assert_eq!((open.send("GET", "/ready", "").0, open.ask("c").0), (503, 503));
}

#[test]
fn model_aliases_are_accepted() {
    let models = Models::new(2, &[]);
    for name in ["b", "b:latest"] {
        assert_eq!(models.ask(name).1["model"], "b", "{name}");
        assert_eq!(models.send("GET", &format!("/v1/models/{name}"), "").1["id"], "b");
        assert_eq!(models.send("GET", &format!("/props?model={name}"), "").0, 200);
    }
    assert_eq!(models.n_loads.load(Ordering::Relaxed), 1);
    let listed = models.send("GET", "/v1/models/a", "").1;
    assert_eq!(
        (&listed["aliases"], &listed["tags"]),
        (&json!(["a:latest"]), &json!(["tiny"]))
    );
}

#[test]
fn load_and_unload_routes_change_the_loaded_models() {
    let models = Models::with(3, &[], false);
    let (status, error) = models.ask("b");
    assert_eq!((status, &error["error"]["code"]), (503, &json!("model_not_loaded")));
    let of = |path: &str, name: &str| models.send("POST", path, &json!({ "model": name }).to_string()).0;
    assert_eq!((of("/models/load", "b:latest"), models.ask("b").0), (200, 200));
    assert_eq!((of("/models/unload", "b"), models.ask("b").0), (200, 503));
    assert_eq!(of("/models/unload", "b"), 400, "the model is not loaded");
    assert_eq!([of("/models/load", "nobody"), of("/models/unload", "nobody")], [404; 2]);
    assert_eq!(of("/models/load", "bad"), 422);
    assert_eq!(models.send("POST", "/models/load", "{\"modell\": \"b\"}").0, 400);
    // The query parameter overrides the setting for one request.
    let request = json!({"model": "c", "prompt": "hello", "max_tokens": 1}).to_string();
    assert_eq!(models.send("POST", "/v1/completions?autoload=true", &request).0, 200);
    assert_eq!(
        Models::new(1, &[])
            .send("POST", "/v1/completions?autoload=false", &request)
            .0,
        503
    );
}

#[test]
fn unload_of_model_in_use_conflicts() {
    let models = Models::new(2, &[]);
    let body =
        json!({"model": "b", "prompt": "hello", "stream": true, "ignore_eos": true, "max_tokens": 900}).to_string();
    let request = Request::builder().method("POST").uri("/v1/completions");
    let response = models
        .runtime
        .block_on(
            models
                .pool
                .routes(models.policy())
                .oneshot(request.body(Body::from(body)).unwrap()),
        )
        .unwrap();
    assert_eq!(models.send("POST", "/models/unload", "{\"model\": \"b\"}").0, 409);
    drop(response);
    assert_eq!(models.send("POST", "/models/unload", "{\"model\": \"b\"}").0, 200);
}

/// Metrics of all loaded models share one exposition, labeled by model.
#[test]
fn metrics_are_labeled_by_model() {
    let models = Models::new(2, &[]);
    models.ask("a");
    models.ask("b");
    models.ask("b");
    let page = |path: &str| {
        let request = Request::builder().uri(path).body(Body::empty()).unwrap();
        let routes = models.pool.routes(models.policy());
        models.runtime.block_on(async {
            let response = routes.oneshot(request).await.unwrap();
            let bytes = response.into_body().collect().await.unwrap().to_bytes();
            String::from_utf8(bytes.to_vec()).unwrap()
        })
    };
    let all = page("/metrics");
    for line in [
        "llamacpp:tokens_predicted_total{model=\"a\"} 3",
        "llamacpp:tokens_predicted_total{model=\"b\"} 6",
        "vllm:generation_tokens_total{model=\"b\",model_name=\"b\"} 6",
        "vllm:request_success_total{model=\"a\",model_name=\"a\",finished_reason=\"length\"} 1",
    ] {
        assert!(all.lines().any(|l| l == line), "{line}: {all}");
    }
    let n_types = |text: &str| text.lines().filter(|l| l.starts_with("# TYPE")).count();
    let mut types: Vec<&str> = all.lines().filter(|l| l.starts_with("# TYPE")).collect();
    types.dedup();
    assert_eq!(types.len(), n_types(&all), "each type is declared once");
    let one = page("/metrics?model=b:latest");
    assert!(one.contains("llamacpp:tokens_predicted_total 6"), "{one}");
    assert_eq!(n_types(&one), n_types(&all));
}

/// Clients query the details of every model in the list; the file header suffices.
#[test]
fn show_does_not_load_model() {
    let models = Models::new(2, &[]);
    let show = |name: &str| models.send("POST", "/api/show", &json!({ "model": name }).to_string());
    let (status, before) = show("b:latest");
    assert_eq!((status, models.n_loads.load(Ordering::Relaxed)), (200, 0), "{before}");
    assert_eq!(models.ask("b").0, 200);
    let (_, mut after) = show("b");
    // A loaded model reports the length of its own context.
    let n_ctx = after["parameters"].take();
    assert_eq!(n_ctx, json!("num_ctx 1024"));
    after["modified_at"] = before["modified_at"].clone();
    after["parameters"] = before["parameters"].clone();
    assert_eq!(after, before);
    assert_eq!(before["capabilities"], json!(["completion", "embedding"]));
    assert_eq!((show("bad").0, show("nobody").0), (422, 404));
    assert_eq!(models.send("POST", "/api/show", "{\"modell\": \"b\"}").0, 400);
    assert_eq!(models.n_loads.load(Ordering::Relaxed), 1);
}

/// A missing model is downloaded once, on its first completion request. A failed download fails only that
/// request.
#[test]
fn missing_model_is_downloaded_on_first_use() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let path = folder.path().join("far.gguf");
    std::fs::write(&path, tests::text_model("llama", Some(crate::common::TEMPLATE))).expect("writing a model");
    let n_fetches: Arc<AtomicUsize> = Arc::default();
    let n = n_fetches.clone();
    let fetch = move || match n.fetch_add(1, Ordering::Relaxed) {
        0 => Err("the network is down".to_owned()),
        _ => Ok((path.clone(), std::fs::metadata(&path).expect("a file").len())),
    };
    let far = ModelEntry {
        name: "far".to_owned(),
        aliases: Vec::new(),
        tags: Vec::new(),
        path: std::path::PathBuf::new(),
        n_bytes: 0,
        is_pinned: false,
        download: Some(Arc::new(LazyDownload::new(Box::new(fetch)))),
    };
    let models = Models::of(2, &[], true, Some(far));
    let of = |path: &str| {
        let (_, list) = models.send("GET", path, "");
        let all = list["data"].as_array().or(list["models"].as_array()).cloned().unwrap();
        let name = |m: &Json| m["id"].as_str().or(m["name"].as_str()).map(str::to_owned);
        all.into_iter().find(|m| name(m).as_deref() == Some("far")).unwrap()
    };
    assert_eq!(
        of("/v1/models")["status"],
        json!({"value": "unloaded", "fetched": false})
    );
    let (status, error) = models.send("POST", "/api/show", "{\"model\": \"far\"}");
    assert!(
        status == 422 && error["error"].as_str().unwrap().contains("not downloaded yet"),
        "{error}"
    );
    assert_eq!(n_fetches.load(Ordering::Relaxed), 0);
    let (status, error) = models.ask("far");
    let message = error["error"]["message"].as_str().unwrap_or_default();
    assert!(
        status == 422 && message.contains("cannot download the model \"far\": the network is down"),
        "{error}"
    );
    for _ in 0..2 {
        assert_eq!(models.ask("far").0, 200);
    }
    assert_eq!(n_fetches.load(Ordering::Relaxed), 2);
    assert_eq!(of("/v1/models")["status"]["value"], "loaded");
    assert_eq!(of("/api/tags")["details"]["family"], "llama");
}

/// Ollama's lists are complete for loaded and unloaded models.
#[test]
fn ollama_lists_are_complete() {
    let models = Models::new(2, &[]);
    let list = |path: &str| models.send("GET", path, "").1["models"].as_array().unwrap().clone();
    let before = list("/api/tags");
    assert_eq!(before.len(), 4);
    let of = |all: &[Json], name: &str| all.iter().find(|m| m["name"] == name).unwrap().clone();
    let b = of(&before, "b");
    assert_eq!(
        (&b["model"], &b["details"]["family"], &b["details"]["format"]),
        (&json!("b"), &json!("llama"), &json!("gguf"))
    );
    assert!(
        b["size"].as_u64().unwrap() > 0 && b["digest"].as_str().unwrap().len() == 48,
        "{b}"
    );
    assert!(b["modified_at"].as_str().unwrap().ends_with('Z') && b["details"]["parameter_size"].is_string());
    assert!(list("/api/ps").is_empty());
    models.ask("b");
    assert_eq!(
        of(&list("/api/tags"), "b"),
        b,
        "the entry does not depend on the model being loaded"
    );
    let loaded = list("/api/ps");
    assert_eq!((loaded.len(), &loaded[0]["digest"]), (1, &b["digest"]));
    assert_eq!(loaded[0]["context_length"], 1024);
}

/// Idle models are unloaded, and the next request loads them again; requests for state do not.
#[test]
fn idle_models_sleep_until_the_next_request() {
    let models = Models::sleeping(600);
    let status = |name: &str| {
        let (_, list) = models.send("GET", "/v1/models", "");
        let found = list["data"]
            .as_array()
            .unwrap()
            .iter()
            .find(|model| model["id"] == name)
            .cloned();
        found.unwrap()["status"]["value"].as_str().unwrap().to_owned()
    };
    let wait_for_sleep = |name: &str| {
        for _ in 0..400 {
            if status(name) == "unloaded" {
                return;
            }
            // Requests for the state must not keep the model awake.
            models.send("GET", &format!("/props?model={name}"), "");
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("{name} stays loaded");
    };
    let props = |name: &str| models.send("GET", &format!("/props?model={name}"), "");
    assert_eq!([models.ask("a").0, models.ask("b").0], [200; 2]);
    assert_eq!(props("b").1["is_sleeping"], false);
    wait_for_sleep("b");
    assert_eq!(status("a"), "loaded", "a pinned model stays");
    let (code, asleep) = props("b");
    assert_eq!(
        (code, &asleep["is_sleeping"], &asleep["model_alias"]),
        (200, &json!(true), &json!("b"))
    );
    assert_eq!(props("c").0, 503, "a model that was never loaded has no properties");
    // The counters of a sleeping model remain, and do not wake the model.
    let metrics = |name: &str| models.send("GET", &format!("/metrics?model={name}"), "").0;
    assert_eq!(
        ([metrics("b"), metrics("c")], status("b").as_str()),
        ([200, 503], "unloaded")
    );
    assert_eq!((models.ask("b").0, status("b").as_str()), (200, "loaded"));
}

/// Ollama's `keep_alive` decides when its model is unloaded.
#[test]
fn keep_alive_unloads_the_model_or_keeps_it() {
    let models = Models::new(3, &[]);
    let load = |name: &str, keep_alive: Json| {
        let body = json!({"model": name, "messages": [], "keep_alive": keep_alive}).to_string();
        let (status, answer) = models.send("POST", "/api/chat", &body);
        assert_eq!(status, 200, "{answer}");
        answer["done_reason"].as_str().unwrap().to_owned()
    };
    let loaded = || {
        let (_, list) = models.send("GET", "/api/ps", "");
        list["models"].as_array().unwrap().len()
    };
    assert_eq!(load("b", json!("5m")), "load");
    assert_eq!(load("c", json!(-1)), "load");
    assert_eq!(loaded(), 2);
    assert_eq!(load("b", json!(0)), "unload");
    for _ in 0..200 {
        if loaded() == 1 {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(loaded(), 1);
    load("b", json!("5m"));
    assert_eq!(loaded(), 2);
    assert_eq!(load("a", json!(0)), "load", "a pinned model stays");
}

/// Anthropic's clients read the list in pages, with other fields.
#[test]
fn model_list_has_fields_of_anthropic_for_its_clients() {
    let models = Models::new(2, &[]);
    let get = |path: &str| {
        let request = Request::builder().uri(path).header("anthropic-version", "2023-06-01");
        let response = models
            .pool
            .routes(models.policy())
            .oneshot(request.body(Body::empty()).unwrap());
        models.runtime.block_on(async {
            let bytes = response.await.unwrap().into_body().collect().await.unwrap().to_bytes();
            serde_json::from_slice::<Json>(&bytes).unwrap()
        })
    };
    let page = get("/v1/models");
    assert_eq!(
        (&page["first_id"], &page["last_id"], &page["has_more"]),
        (&json!("a"), &json!("bad"), &json!(false))
    );
    for entry in page["data"].as_array().unwrap().iter().chain([&get("/v1/models/a")]) {
        assert_eq!(
            (&entry["type"], &entry["display_name"]),
            (&json!("model"), &entry["id"])
        );
        assert!(entry["created_at"].as_str().unwrap().ends_with('Z'), "{entry}");
    }
    let (_, plain) = models.send("GET", "/v1/models", "");
    assert!(plain["has_more"].is_null() && plain["data"][0]["created_at"].is_null());
}
