//! `llama serve`: serves models over HTTP.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::backend::ThreadPool;
use engine::context::{Context, ContextParams, MAX_SEQUENCES};
use engine::model::Model;
use engine::sample::Recommended;
use engine::speculate::DraftController;
use server::api::{Defaults, limit};
use server::app::App;
use server::chat::ChatParams;
use server::guard::{AccessPolicy, Log, RequestRecord};
use server::http::{ANY_ORIGIN, ListenParams, Listener, serve};
use server::router::{Router, router};
use server::scheduler::{Scheduler, Settings, Speculation};
use server::service::{ModelService, ServiceParams};
use tokio::sync::watch;

use crate::args::{ServeArgs, ServingArgs};
use crate::commands::{input, listen, model_pool};
use crate::drafting::{self, Source};
use crate::failure::{Failure, Outcome};
use crate::loading::LoadArgs;
use crate::session::no_context;
use crate::{fetch, format, interrupt, log, version};

/// Default context size in tokens, if the training context is not smaller.
const DEFAULT_CONTEXT: usize = 8192;
/// Threads for connections; the model uses its own threads.
const N_THREADS: usize = 2;
/// Threads for blocking work, such as compiling grammars and tokenizing long prompts.
const N_BLOCKING: usize = 16;

/// Maximum sequences with drafts by a model or MTP layer, which need memory each.
const MAX_DRAFTED: usize = 8;

/// Callback that stops accepting requests.
type Close = Box<dyn Fn() + Send + Sync>;

/// Serves requests until a signal arrives.
pub fn run(args: ServeArgs) -> Outcome {
    // Leaked, because models are loaded from it until the process exits.
    let args: &'static ServeArgs = Box::leak(Box::new(args));
    let start = Instant::now();
    log::init(args.log.log()?);
    let keys = keys(args)?;
    check_origins(args, !keys.is_empty())?;
    args.without_effect.notices.iter().for_each(log::line);
    for (name, why) in args.without_effect.given() {
        log::line(format_args!("{name} has no effect: {why}"));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(N_THREADS)
        .max_blocking_threads(N_BLOCKING)
        .enable_all()
        .build()?;
    check_models(args)?;
    check_directories(args)?;
    // Bind before loading the model, to report a port conflict early.
    let (listener, place) = listen::listen(args, !keys.is_empty(), &runtime)?;
    let gate = AccessPolicy {
        keys,
        page: !args.no_webui && args.path.is_none(),
        folder: args.path.clone(),
        prefix: args.api_prefix.clone(),
        origins: args.cors_origins.clone(),
        is_public: args.insecure,
        log: args.verbose.then(|| -> Log { Box::new(tell) }),
    };
    let (routes, close) = match args.serves_several() {
        true => of_several(args, gate, &runtime, &place, start)?,
        false => of_model(args, gate, &place, start)?,
    };
    if let Some(address) = place
        .strip_suffix("/v1")
        .filter(|_| !args.no_webui && args.path.is_none())
    {
        log::line(format_args!("web page: {address}"));
    }
    let params = ListenParams {
        max_connections: args.max_connections.into(),
        t_drain: Duration::from_secs(args.shutdown_timeout),
        ..ListenParams::default()
    };
    let done = runtime.block_on(run_until_signal(listener, routes, close, params));
    // The shutdown timeout has passed.
    runtime.shutdown_background();
    if args.host.ends_with(".sock") {
        // The file may have been removed or replaced by another server.
        let _ = std::fs::remove_file(&args.host);
    }
    done
}

/// Creates the routes for several models.
fn of_several(
    args: &'static ServeArgs,
    gate: AccessPolicy,
    runtime: &tokio::runtime::Runtime,
    place: &str,
    start: Instant,
) -> Outcome<(Router, Close)> {
    let (models, first) = model_pool::pool(args)?;
    for name in &first {
        let loaded = runtime.block_on(models.preload(name));
        loaded.map_err(|e| Failure::new(e.message))?;
    }
    log::line(format_args!(
        "serving {} at {place}, ready in {:.2} s",
        format::plural(models.n_models(), "model"),
        start.elapsed().as_secs_f64()
    ));
    Ok((models.routes(gate), Box::new(move || models.close())))
}

/// Creates the routes for one model.
fn of_model(args: &ServeArgs, gate: AccessPolicy, place: &str, start: Instant) -> Outcome<(Router, Close)> {
    let path = fetch::model(args.first.as_deref().or(args.model.as_deref()), &args.serving.hub)?;
    let mut app = app(&args.serving, &path)?;
    app.service.params.slot_save_path = args.slot_save_path.clone();
    let (name, n_ctx) = (&app.service.params.name, app.service.n_ctx());
    log::line(format_args!(
        "serving {name} at {place}: {} of context, up to {}, ready in {:.2} s",
        format::plural(n_ctx, "token"),
        format::plural(args.serving.n_parallel, "parallel request"),
        start.elapsed().as_secs_f64()
    ));
    let app = Arc::new(app);
    Ok((
        router(app.clone(), gate),
        Box::new(move || app.service.scheduler.close()),
    ))
}

/// Serves until the first signal, then waits for running requests until they finish, the timeout passes, or a
/// second signal arrives.
async fn run_until_signal(listener: Listener, routes: Router, close: Close, params: ListenParams) -> Outcome {
    let (signals_sent, mut end) = watch::channel(0);
    let mut signals = Signals::new()?;
    interrupt::leave_alone();
    tokio::spawn(async move {
        loop {
            signals.next().await;
            interrupt::stop();
            close();
            signals_sent.send_modify(|n| *n += 1);
        }
    });
    let mut second = end.clone();
    let first = async move {
        // An error means that the sender was dropped.
        let _ = end.wait_for(|&n| n >= 1).await;
        log::line("shutting down: finishing running requests, rejecting new ones; press Ctrl-C again to exit now");
    };
    let service = serve(listener, routes, params, first);
    tokio::select! {
        all = service => match all? {
            true => Ok(()),
            false => Err(Failure::new("shutdown timeout reached; some requests were aborted")),
        },
        _ = second.wait_for(|&n| n >= 2) => Err(Failure::Interrupted),
    }
}

/// Termination signals.
#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> Outcome<Signals> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> Outcome<Signals> {
        Ok(Signals)
    }

    async fn next(&mut self) {
        // If Ctrl-C cannot be handled, it ends the process.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

fn tell(record: &RequestRecord) {
    let RequestRecord {
        id,
        method,
        path,
        status,
        time,
    } = record;
    let ms = time.as_secs_f64() * 1e3;
    let line = format_args!("{id} {method} {path} {} {ms:.1} ms", status.as_u16());
    let fields =
        serde_json::json!({ "id": id, "method": method.as_str(), "path": path, "status": status.as_u16(), "ms": ms });
    log::event(line, fields.as_object().cloned().unwrap_or_default());
}

/// Checks that either one model or several are served, and that the options match.
fn check_models(args: &ServeArgs) -> Outcome {
    let serving = &args.serving;
    let named = [
        (args.first.is_some(), "MODEL"),
        (args.model.is_some(), "-m"),
        (serving.hub.names_a_model(), "-hf and -mu"),
        (!serving.alias.is_empty(), "--alias"),
        (serving.speculation.draft.is_some(), "--draft"),
    ];
    let of_one = named.into_iter().find(|(given, _)| *given && args.serves_several());
    if let Some((_, what)) = of_one {
        return Err(Failure::new(format_args!(
            "{what} selects a single model and cannot be combined with --models-dir or --models-preset"
        )));
    }
    match args.models_pin.is_empty() || args.serves_several() {
        true => Ok(()),
        false => Err(Failure::new("--models-pin requires --models-dir or --models-preset")),
    }
}

/// Checks that directories exist, to report errors at startup instead of on the first request.
fn check_directories(args: &ServeArgs) -> Outcome {
    for (option, directory) in [("--path", &args.path), ("--slot-save-path", &args.slot_save_path)] {
        if let Some(directory) = directory.as_ref().filter(|directory| !directory.is_dir()) {
            let directory = directory.display();
            return Err(Failure::new(format_args!(
                "{option} {directory}: directory does not exist"
            )));
        }
    }
    let model = args.first.as_ref().or(args.model.as_ref());
    match model.filter(|model| Path::new(model).is_dir()) {
        Some(directory) => {
            let directory = directory.display();
            Err(Failure::new(format_args!(
                "{directory} is a directory; use --models-dir {directory} to serve its models"
            )))
        }
        None => Ok(()),
    }
}

/// Returns the API keys from the command line and the key file.
fn keys(args: &ServeArgs) -> Outcome<Vec<String>> {
    let mut keys = args.api_key.clone();
    if let Some(path) = &args.api_key_file {
        let text = input::read(path).map_err(|e| e.of_option("--api-key-file"))?;
        let before = keys.len();
        keys.extend(
            text.lines()
                .map(str::trim)
                .filter(|line| !line.is_empty())
                .map(str::to_owned),
        );
        if keys.len() == before {
            let path = path.display();
            return Err(Failure::new(format_args!(
                "--api-key-file {path}: the file contains no key"
            )));
        }
    }
    match keys.iter().any(|key| key.trim().is_empty()) {
        true => Err(Failure::new("--api-key must not be empty")),
        false => Ok(keys),
    }
}

/// Checks CORS origins. Allowing any origin requires an API key or `--insecure`.
fn check_origins(args: &ServeArgs, has_keys: bool) -> Outcome {
    for origin in &args.cors_origins {
        if origin == ANY_ORIGIN && !has_keys && !args.insecure {
            return Err(Failure::new(
                "--cors-origins '*' lets every web page use the model; set --api-key, or --insecure to allow access without a key",
            ));
        }
        let is_origin = |(form, host): (&str, &str)| !form.is_empty() && !host.is_empty() && !host.contains('/');
        if origin != ANY_ORIGIN && !origin.split_once("://").is_some_and(is_origin) {
            return Err(Failure::new(format_args!(
                "--cors-origins {origin}: expected '*' or an origin without a path, such as https://example.org or http://127.0.0.1:3000"
            )));
        }
    }
    Ok(())
}

/// Loads a model with everything needed to serve it.
pub fn app(args: &ServingArgs, path: &Path) -> Outcome<App> {
    let mut params = args.context.params();
    params.n_seq_max = (2 * args.n_parallel).min(MAX_SEQUENCES);
    params.n_batch = params.n_batch.max(args.n_parallel);
    params.n_outputs_max = params.n_seq_max;
    let plain = params.clone();
    let speculation = args.speculation.resolved()?;
    if speculation.is_wanted() {
        drafting::prepare(&mut params, &speculation, args.n_parallel);
    }
    let memory = params.memory(args.context.ctx_size.unwrap_or(DEFAULT_CONTEXT));
    let load = LoadArgs {
        mtp: speculation.mtp,
        ..args.load.clone()
    };
    let model = load.load(path, args.context.precision, Some(memory))?;
    let n_train = model.base().n_ctx_train();
    params.n_ctx = args.context.ctx_size.unwrap_or(DEFAULT_CONTEXT.min(n_train.max(1)));
    // Generation and embedding contexts take turns on one thread pool.
    let n_threads = params.n_threads.max(params.n_threads_batch);
    params.thread_pool = Some(Arc::new(ThreadPool::new(n_threads)?));
    let settings = Settings {
        n_parallel: args.n_parallel.min(params.n_batch),
        max_waiting: args.max_queue,
        t_step: Duration::from_millis(args.prefill_budget_ms),
        ..Settings::default()
    };
    let scheduler = if Scheduler::encodes(&model) {
        Scheduler::idle(model.clone(), settings)
    } else {
        let mut context = Context::new(model.clone(), &params).map_err(|e| no_context(&model, e))?;
        match args.defaults.lora_init_without_apply {
            true => args.adapters.without_effect().apply(&mut context)?,
            false => args.adapters.apply(&mut context)?,
        }
        let source = Source {
            speculation: &speculation,
            hub: &args.hub,
            load: &args.load,
            context: &args.context,
        };
        let drafters = source.drafters(&context, settings.n_parallel.min(MAX_DRAFTED))?;
        let speculation = drafters.map(|drafters| Speculation {
            controller: DraftController::new(speculation.draft_max.into()),
            drafters,
        });
        Scheduler::speculating(context, settings, speculation)?
    };
    let service = served_params(args, path, &model)?;
    let chat = chat_params(args)?;
    let embedding = ContextParams {
        pooling: args.pooling,
        n_outputs_max: 0,
        n_ctx: params.n_ctx,
        thread_pool: params.thread_pool,
        ..plain
    };
    let service = ModelService::new(scheduler, service, chat);
    let service = service.map_err(|e| Failure::new(format_args!("{}: {e}", path.display())))?;
    // Report constraint errors at startup instead of on the first request.
    service.constraint(None).map_err(|e| Failure::new(e.message))?;
    Ok(App::new(service, embedding))
}

fn chat_params(args: &ServingArgs) -> Outcome<ChatParams> {
    let template = match &args.template.chat_template_file {
        Some(path) => Some(input::read(path).map_err(|e| e.of_option("--chat-template-file"))?),
        None => args.template.chat_template.clone(),
    };
    Ok(ChatParams {
        template,
        variables: args.template.variables(),
        raw_output: args.defaults.skip_chat_parsing,
        split_reasoning: args.reasoning_format != "none" && !args.template.hide_reasoning,
        reasoning_budget: usize::try_from(args.template.reasoning_budget).ok(),
        reasoning_message: args.template.reasoning_budget_message.clone(),
    })
}

fn served_params(args: &ServingArgs, path: &Path, model: &Model) -> Outcome<ServiceParams> {
    let recommended = Recommended::of(model.metadata(), args.sampler.is_greedy());
    for key in &recommended.refused {
        log::line(format_args!(
            "warning: ignoring {key} of the file: invalid value for this setting"
        ));
    }
    let mut sampler = recommended.params;
    args.sampler.apply(&mut sampler)?;
    let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let mut names = args.alias.iter().map(|name| name.trim().to_owned());
    let first = names.next().filter(|name| !name.is_empty()).or(stem);
    Ok(ServiceParams {
        name: first.unwrap_or_else(|| "model".to_owned()),
        aliases: names.filter(|name| !name.is_empty()).collect(),
        defaults: Defaults {
            sampler,
            stop: args.defaults.reverse_prompt.clone(),
            ignore_eos: args.defaults.ignore_eos,
            max_tokens: args.predict.map(limit),
            grammar: args.defaults.grammar.grammar()?.map(|(_, grammar)| grammar),
        },
        show_special_tokens: args.defaults.special,
        suffix_first: args.defaults.spm_infill,
        slot_save_path: None,
        adapters: args.adapters.names(),
        build: version::short(),
    })
}
