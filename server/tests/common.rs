//! Test server in this process, and an HTTP client.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use engine::context::{Context, ContextParams};
use engine::model::{LoadParams, Model};
use engine::sample::SamplerParams;
use engine::speculate::{DraftController, Drafter};
use llama::parts::MediaProjector;
use media::Limits;
use serde_json::Value as Json;
use server::api::Defaults;
use server::app::App;
use server::chat::ChatParams;
use server::guard::AccessPolicy;
use server::http::{ListenParams, Listener, serve};
use server::media_encoder::MediaQueue;
use server::router::router;
use server::scheduler::{Drafters, Scheduler, Settings, Speculation};
use server::service::{ModelService, ServiceParams};
use server::vertex::Vertex;
use tests::images;
use tests::layouts::lora;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// Chat template with role tags; the completion follows `<assistant>`.
pub const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

/// Options of a test server.
pub struct Options {
    pub n_parallel: usize,
    pub max_waiting: usize,
    pub n_ctx: usize,
    pub keys: Vec<String>,
    pub template: Option<&'static str>,
    pub page: bool,
    pub folder: Option<PathBuf>,
    pub vertex: Option<Vertex>,
    pub prefix: String,
    pub origins: Vec<String>,
    pub listen: ListenParams,
    pub has_slots: bool,
    pub slot_save_path: Option<PathBuf>,
    pub slot_save_limit: u64,
    /// Step duration after which the scheduler counts as stuck.
    pub t_stuck: Duration,
    /// Model file that replaces the default tiny model.
    pub model: Option<Vec<u8>>,
    /// Chat template that overrides the model's template.
    pub other_template: Option<&'static str>,
    /// Default request settings, except sampling.
    pub defaults: Defaults,
    pub show_special_tokens: bool,
    pub raw_output: bool,
    pub suffix_first: bool,
    /// Projector file of the model.
    pub projector: Option<Vec<u8>>,
    /// Size of the cache of encoded media in bytes.
    pub media_cache: usize,
    /// Maximum size of a medium in bytes.
    pub media_bytes: usize,
    /// Drafter of the first completion.
    pub drafter: Mutex<Option<Box<dyn Drafter>>>,
    /// Matrices with a LoRA adapter each, and the scales of the adapters.
    pub adapters: Vec<(&'static str, f32)>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            n_parallel: 4,
            max_waiting: 64,
            n_ctx: 1024,
            keys: Vec::new(),
            template: Some(TEMPLATE),
            page: true,
            folder: None,
            vertex: None,
            prefix: String::new(),
            origins: Vec::new(),
            listen: ListenParams::default(),
            has_slots: true,
            slot_save_path: None,
            slot_save_limit: u64::MAX,
            t_stuck: Settings::default().t_stuck,
            model: None,
            other_template: None,
            defaults: Defaults::default(),
            show_special_tokens: false,
            raw_output: false,
            suffix_first: false,
            projector: None,
            adapters: Vec::new(),
            media_cache: 1 << 20,
            media_bytes: 20 << 20,
            drafter: Mutex::default(),
        }
    }
}

impl Options {
    /// Returns the options of a server whose model reads images.
    pub fn with_images() -> Options {
        Options {
            model: Some(images::vision_model(Some(TEMPLATE), &images::AROUND_IMAGE)),
            projector: Some(images::projector(images::N_EMBD)),
            ..Options::default()
        }
    }

    /// Returns the options of a server whose model reads images and audio.
    pub fn with_images_and_audio() -> Options {
        Options {
            projector: Some(images::projector_of_both(
                "idefics3",
                "ultravox",
                "ultravox",
                images::N_EMBD,
            )),
            ..Options::with_images()
        }
    }

    /// Returns the options of a server whose model reads audio.
    pub fn with_audio() -> Options {
        Options {
            projector: Some(images::projector_of("ultravox", images::N_EMBD)),
            ..Options::default()
        }
    }
}

/// Server with a tiny model; dropping it stops the server.
pub struct Server {
    pub address: SocketAddr,
    pub app: Arc<App>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<bool>>,
}

impl Server {
    pub fn new() -> Server {
        Server::with(Options::default())
    }

    pub fn with(options: Options) -> Server {
        Server::on(options, Listener::Tcp)
    }

    /// Starts a server with a custom listener, given a free port.
    pub fn on(options: Options, listener: impl FnOnce(TcpListener) -> Listener) -> Server {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("tiny.gguf");
        std::fs::write(
            &path,
            options
                .model
                .clone()
                .unwrap_or_else(|| tests::text_model("llama", options.template)),
        )
        .expect("writing a model");
        let app = app(&options, &path, "tiny").expect("a model");
        let policy = AccessPolicy {
            keys: options.keys,
            page: options.page,
            folder: options.folder,
            prefix: options.prefix,
            origins: options.origins,
            is_public: false,
            vertex: options.vertex,
            media_bytes: options.media_bytes,
            logs_requests: false,
        };
        Server::listening(Arc::new(app), policy, options.listen, listener)
    }

    fn listening(
        app: Arc<App>,
        policy: AccessPolicy,
        listen: ListenParams,
        listener: impl FnOnce(TcpListener) -> Listener,
    ) -> Server {
        let (end, ended) = oneshot::channel();
        let routes = router(app.clone(), policy);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build();
        let runtime = runtime.expect("a runtime");
        let (address, listener) = runtime.block_on(async {
            let bound = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            (bound.local_addr().expect("an address"), listener(bound))
        });
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                let end = async {
                    // Dropping the sender also stops the server.
                    let _ = ended.await;
                };
                serve(listener, routes, listen, end).await.expect("it serves")
            })
        });
        Server {
            address,
            app,
            end: Some(end),
            thread: Some(thread),
        }
    }

    /// Shuts the server down and waits. Returns true if all requests finished.
    pub fn end(&mut self) -> bool {
        drop(self.end.take());
        self.thread.take().is_none_or(|thread| thread.join().expect("no panic"))
    }

    /// Opens a connection.
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a limit");
        stream
    }

    /// Sends a POST request with a JSON body.
    pub fn post(&self, path: &str, body: &Json) -> Response {
        self.request("POST", path, &[], body.to_string().as_bytes())
    }

    /// Sends a POST request that must succeed; returns the body.
    #[track_caller]
    pub fn ask(&self, path: &str, body: &Json) -> Json {
        let response = self.post(path, body);
        assert_eq!(response.status, 200, "{}", response.body);
        response.json()
    }

    /// Sends a POST request that must fail with `status`; returns the error object.
    #[track_caller]
    pub fn refused(&self, path: &str, body: &Json, status: u16) -> Json {
        let response = self.post(path, body);
        assert_eq!(response.status, status, "{body}: {}", response.body);
        response.json()["error"].clone()
    }

    /// Sends a POST request that must succeed; returns the data of its events.
    #[track_caller]
    pub fn events(&self, path: &str, body: &Json) -> Vec<String> {
        let response = self.post(path, body);
        assert_eq!(response.status, 200, "{}", response.body);
        assert_eq!(response.header("content-type"), Some("text/event-stream"));
        let lines = response.body.split("\n\n").filter(|event| !event.is_empty());
        lines
            .map(|line| line.strip_prefix("data: ").expect("data").to_owned())
            .collect()
    }

    pub fn get(&self, path: &str) -> Response {
        self.request("GET", path, &[], b"")
    }

    pub fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Response {
        let mut stream = self.connect();
        stream
            .write_all(&head(method, path, headers, body.len()))
            .expect("the server accepts the request head");
        // The server may reject the request before reading the body.
        let _ = stream.write_all(body);
        Response::read(&mut stream).expect("a response")
    }

    /// Waits until no request is running or queued.
    pub fn rest(&self) {
        for _ in 0..6000 {
            let gauges = self.app.service.scheduler.gauges();
            if (gauges.n_running, gauges.n_waiting) == (0, 0) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("requests are still running: {:?}", self.app.service.scheduler.gauges());
    }
}

/// Loads a model file and creates its state.
pub fn app(options: &Options, path: &std::path::Path, name: &str) -> Result<App, String> {
    let model = Arc::new(Model::load(path, archs::ALL, &LoadParams::default()).map_err(|e| e.to_string())?);
    let projector = options.projector.as_ref().map(|bytes| projector(bytes, path, &model));
    let params = ContextParams {
        media_rows: projector.as_ref().map_or(0, MediaProjector::n_rows),
        n_ctx: options.n_ctx,
        n_seq_max: 2 * options.n_parallel,
        n_batch: 512,
        n_threads: 1,
        n_threads_batch: 1,
        ..ContextParams::default()
    };
    let settings = Settings {
        n_parallel: options.n_parallel,
        max_waiting: options.max_waiting,
        t_stuck: options.t_stuck,
        ..Settings::default()
    };
    let scheduler = if Scheduler::encodes(&model) {
        Scheduler::idle(model, settings)
    } else {
        let adapter = |(weight, scale): &(&str, f32)| (lora(&model, weight), *scale);
        let adapters: Vec<_> = options.adapters.iter().map(adapter).collect();
        let mut context = Context::new(model, &params).expect("a context");
        context.set_adapters(&adapters).expect("adapters of the model");
        let drafter = options.drafter.lock().expect("no panic").take();
        let speculation = drafter.map(|drafter| Speculation {
            controller: DraftController::by_tokens(1),
            drafters: Drafters::Some(vec![drafter]),
        });
        Scheduler::speculating(context, settings, speculation).expect("a scheduler")
    };
    let service = ServiceParams {
        path: path.to_owned(),
        name: name.to_owned(),
        aliases: vec![format!("{name}-again")],
        tags: vec!["small".to_owned()],
        has_slots: options.has_slots,
        defaults: Defaults {
            sampler: SamplerParams::greedy(),
            ..options.defaults.clone()
        },
        show_special_tokens: options.show_special_tokens,
        suffix_first: options.suffix_first,
        slot_save_path: options.slot_save_path.clone(),
        slot_save_limit: options.slot_save_limit,
        adapters: options
            .adapters
            .iter()
            .map(|(weight, _)| format!("{weight}.gguf"))
            .collect(),
        media_limits: Limits {
            bytes: options.media_bytes,
            ..Limits::default()
        },
        build: "test".to_owned(),
    };
    let chat = ChatParams {
        template: options.other_template.map(str::to_owned),
        raw_output: options.raw_output,
        split_reasoning: true,
        ..ChatParams::default()
    };
    let limits = service.media_limits.clone();
    let media = projector.map(|projector| MediaQueue::new(projector, limits, options.media_cache).expect("a thread"));
    let service = ModelService::with_media(scheduler, service, chat, media).map_err(|e| e.to_string())?;
    Ok(App::new(service, params))
}

/// Writes the projector next to the model and loads it.
pub fn projector(bytes: &[u8], model_path: &std::path::Path, model: &Model) -> MediaProjector {
    let path = model_path.with_file_name("mmproj.gguf");
    std::fs::write(&path, bytes).expect("writing a projector");
    let params = ContextParams {
        n_threads: 1,
        n_threads_batch: 1,
        ..ContextParams::default()
    };
    MediaProjector::open(&path, &LoadParams::default(), &params, model).expect("a projector")
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// Returns a request head.
pub fn head(method: &str, path: &str, headers: &[(&str, &str)], len: usize) -> Vec<u8> {
    let mut head =
        format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len}\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    (head + "\r\n").into_bytes()
}

/// A complete response.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: String,
}

impl Response {
    /// Reads until the connection closes; `None` if no response arrives.
    pub fn read(stream: &mut TcpStream) -> Option<Response> {
        let mut bytes = Vec::new();
        // A reset connection may still have delivered data.
        let _ = stream.read_to_end(&mut bytes);
        let at = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
        let (head, body) = (String::from_utf8_lossy(&bytes[..at]).into_owned(), &bytes[at + 4..]);
        let mut lines = head.lines();
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let pair = |line: &str| {
            line.split_once(": ")
                .map(|(n, v)| (n.to_ascii_lowercase(), v.to_owned()))
        };
        let headers: Vec<(String, String)> = lines.filter_map(pair).collect();
        let is_chunked = headers
            .iter()
            .any(|(name, value)| name == "transfer-encoding" && value == "chunked");
        let body = if is_chunked { unchunked(body) } else { body.to_vec() };
        let body = String::from_utf8(body).expect("text");
        Some(Response { status, headers, body })
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    #[track_caller]
    pub fn json(&self) -> Json {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }
}

fn unchunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(at) = bytes.windows(2).position(|two| two == b"\r\n") {
        let size = std::str::from_utf8(&bytes[..at])
            .ok()
            .and_then(|text| usize::from_str_radix(text, 16).ok());
        let Some(size) = size.filter(|&n| n > 0 && bytes.len() >= at + 2 + n) else {
            break;
        };
        all.extend_from_slice(&bytes[at + 2..at + 2 + size]);
        bytes = bytes.get(at + 4 + size..).unwrap_or_default();
    }
    all
}
