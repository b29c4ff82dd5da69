//! `llama serve`: a model for many clients, over HTTP.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::backend::ThreadPool;
use engine::context::{Context, ContextParams, MAX_SEQUENCES};
use engine::model::Model;
use engine::sample::Recommended;
use engine::speculate::Pace;
use server::api::{Defaults, limit};
use server::http::{ANY_ORIGIN, App, Gate, ListenParams, Listener, Log, Record, serve};
use server::routes::{Router, router};
use server::scheduler::{Scheduler, Settings, Speculation};
use server::served::{Served, ServedParams};
use tokio::sync::watch;

use crate::args::{ServeArgs, ServingArgs};
use crate::commands::{fleet, input, listen};
use crate::drafting::{self, Source};
use crate::failure::{Failure, Outcome};
use crate::loading::LoadArgs;
use crate::session::no_context;
use crate::{fetch, human, interrupt, say, version};

/// Tokens of a context of which nothing is said, if the model was trained for as many.
const DEFAULT_CONTEXT: usize = 8192;
/// Threads that wait for connections; the model has others.
const N_THREADS: usize = 2;
/// Threads for what takes a moment, such as grammars and tokens of long texts.
const N_BLOCKING: usize = 16;

/// Most answers at once that have drafts by a model or a layer, which needs memory for each.
const MAX_DRAFTED: usize = 8;

/// Ends taking requests.
type Close = Box<dyn Fn() + Send + Sync>;

/// Serves until it is told to end.
pub fn run(args: ServeArgs) -> Outcome {
    // Models are loaded by it as long as the program runs.
    let args: &'static ServeArgs = Box::leak(Box::new(args));
    let start = Instant::now();
    say::set_log(args.log.log()?);
    let keys = keys(args)?;
    check_origins(args, !keys.is_empty())?;
    args.without_effect.told.iter().for_each(say::line);
    for (name, why) in args.without_effect.given() {
        say::line(format_args!("{name} has no effect here: {why}"));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(N_THREADS)
        .max_blocking_threads(N_BLOCKING)
        .enable_all()
        .build()?;
    check_models(args)?;
    check_folders(args)?;
    // Before the model is loaded: a port that is taken should not be found out later.
    let (listener, place) = listen::listen(args, !keys.is_empty(), &runtime)?;
    let gate = Gate {
        keys,
        page: !args.no_webui && args.path.is_none(),
        folder: args.path.clone(),
        prefix: args.api_prefix.clone(),
        origins: args.cors_origins.clone(),
        for_all: args.insecure,
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
        say::line(format_args!("a page to chat with it: {address}"));
    }
    let params = ListenParams {
        max_connections: args.max_connections.into(),
        t_drain: Duration::from_secs(args.drain),
        ..ListenParams::default()
    };
    let done = runtime.block_on(until_told(listener, routes, close, params));
    // What is still under way has had its time.
    runtime.shutdown_background();
    if args.host.ends_with(".sock") {
        // Another server may have taken its place, or somebody may have removed it.
        let _ = std::fs::remove_file(&args.host);
    }
    done
}

/// The routes of several models.
fn of_several(
    args: &'static ServeArgs,
    gate: Gate,
    runtime: &tokio::runtime::Runtime,
    place: &str,
    start: Instant,
) -> Outcome<(Router, Close)> {
    let (fleet, first) = fleet::fleet(args)?;
    for name in &first {
        let loaded = runtime.block_on(fleet.preload(name));
        loaded.map_err(|e| Failure::new(e.message))?;
    }
    say::line(format_args!(
        "{} at {place}, ready in {:.2} s",
        human::plural(fleet.n_models(), "model"),
        start.elapsed().as_secs_f64()
    ));
    Ok((fleet.routes(gate), Box::new(move || fleet.close())))
}

/// The routes of one model.
fn of_model(args: &ServeArgs, gate: Gate, place: &str, start: Instant) -> Outcome<(Router, Close)> {
    let path = fetch::model(args.first.as_deref().or(args.model.as_deref()), &args.serving.hub)?;
    let mut served = served(&args.serving, &path)?;
    served.params.slot_save_path = args.slot_save_path.clone();
    let (name, n_ctx) = (&served.params.name, served.n_ctx());
    say::line(format_args!(
        "{name} at {place}: {} for up to {} at once, ready in {:.2} s",
        human::plural(n_ctx, "token"),
        human::plural(args.serving.n_parallel, "answer"),
        start.elapsed().as_secs_f64()
    ));
    let app = Arc::new(App { served });
    Ok((
        router(app.clone(), gate),
        Box::new(move || app.served.scheduler.close()),
    ))
}

/// Serves until the first signal, then until requests under way are done, their time is over, or a second signal comes.
async fn until_told(listener: Listener, routes: Router, close: Close, params: ListenParams) -> Outcome {
    let (told, mut end) = watch::channel(0);
    let mut signals = Signals::new()?;
    interrupt::leave_alone();
    tokio::spawn(async move {
        loop {
            signals.next().await;
            interrupt::stop();
            close();
            told.send_modify(|n| *n += 1);
        }
    });
    let mut second = end.clone();
    let first = async move {
        // An error means that nobody can tell any more.
        let _ = end.wait_for(|&n| n >= 1).await;
        say::line("ending: requests under way are finished, new ones are refused; once more ends at once");
    };
    let served = serve(listener, routes, params, first);
    tokio::select! {
        all = served => match all? {
            true => Ok(()),
            false => Err(Failure::new("some requests were cut off: their time was over")),
        },
        _ = second.wait_for(|&n| n >= 2) => Err(Failure::Interrupted),
    }
}

/// What tells a server to end.
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
        // Where it cannot be listened to, the process ends as usual.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

fn tell(record: &Record) {
    let Record {
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
    say::record(line, fields.as_object().cloned().unwrap_or_default());
}

/// One model is named, or there are several; and what is said of several has some.
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
            "--models-dir and --models-preset serve several models, each by its name: {what} is for one model"
        )));
    }
    match args.models_pin.is_empty() || args.serves_several() {
        true => Ok(()),
        false => Err(Failure::new(
            "--models-pin names one of several models: --models-dir or --models-preset says which there are",
        )),
    }
}

/// Folders have to be there: who names one that is not is better told now than by the first request for it.
fn check_folders(args: &ServeArgs) -> Outcome {
    for (option, folder) in [("--path", &args.path), ("--slot-save-path", &args.slot_save_path)] {
        if let Some(folder) = folder.as_ref().filter(|folder| !folder.is_dir()) {
            let folder = folder.display();
            return Err(Failure::new(format_args!("{option} {folder}: there is no such folder")));
        }
    }
    let model = args.first.as_ref().or(args.model.as_ref());
    match model.filter(|model| Path::new(model).is_dir()) {
        Some(folder) => {
            let folder = folder.display();
            Err(Failure::new(format_args!(
                "{folder} is a folder: --models-dir {folder} serves the models in it"
            )))
        }
        None => Ok(()),
    }
}

/// Keys of the command line and of the file.
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
                "--api-key-file {path}: there is no key in it"
            )));
        }
    }
    match keys.iter().any(|key| key.trim().is_empty()) {
        true => Err(Failure::new("--api-key is empty: it would keep out nobody")),
        false => Ok(keys),
    }
}

/// Pages of others may ask where their origins are named, or where they need a key.
fn check_origins(args: &ServeArgs, has_keys: bool) -> Outcome {
    for origin in &args.cors_origins {
        if origin == ANY_ORIGIN && !has_keys && !args.insecure {
            return Err(Failure::new(
                "--cors-origins '*' lets every page that is open in a browser use the model: --api-key says who may, --insecure that all may",
            ));
        }
        let is_origin = |(form, host): (&str, &str)| !form.is_empty() && !host.is_empty() && !host.contains('/');
        if origin != ANY_ORIGIN && !origin.split_once("://").is_some_and(is_origin) {
            return Err(Failure::new(format_args!(
                "--cors-origins {origin}: expected an origin such as https://example.org or http://127.0.0.1:3000, without a path, or '*'"
            )));
        }
    }
    Ok(())
}

/// The model with everything that it needs.
pub fn served(args: &ServingArgs, path: &Path) -> Outcome<Served> {
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
    // Contexts for texts and for vectors compute in turns.
    let n_threads = params.n_threads.max(params.n_threads_batch);
    params.thread_pool = Some(Arc::new(ThreadPool::new(n_threads)?));
    let settings = Settings {
        n_parallel: args.n_parallel.min(params.n_batch),
        max_waiting: args.max_waiting,
        t_step: Duration::from_millis(args.prompt_step),
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
            pace: Pace::new(speculation.draft_max.into()),
            drafters,
        });
        Scheduler::speculating(context, settings, speculation)?
    };
    let served = served_params(args, path, &model)?;
    let embedding = ContextParams {
        pooling: args.pooling,
        n_outputs_max: 0,
        n_ctx: params.n_ctx,
        thread_pool: params.thread_pool,
        ..plain
    };
    let served = Served::new(scheduler, served, embedding);
    let served = served.map_err(|e| Failure::new(format_args!("{}: {e}", path.display())))?;
    // Found out now, and not by the first request.
    let checked = served.constraint(None).map_err(|e| Failure::new(e.message));
    checked.map(|_| served)
}

fn served_params(args: &ServingArgs, path: &Path, model: &Model) -> Outcome<ServedParams> {
    let recommended = Recommended::of(model.metadata(), args.sampler.is_greedy());
    for key in &recommended.refused {
        say::line(format_args!(
            "warning: the file's {key} is left out: no setting has that value"
        ));
    }
    let mut sampler = recommended.params;
    args.sampler.apply(&mut sampler)?;
    let template = match &args.template.chat_template_file {
        Some(path) => Some(input::read(path).map_err(|e| e.of_option("--chat-template-file"))?),
        None => args.template.chat_template.clone(),
    };
    let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let mut names = args.alias.iter().map(|name| name.trim().to_owned());
    let first = names.next().filter(|name| !name.is_empty()).or(stem);
    Ok(ServedParams {
        name: first.unwrap_or_else(|| "model".to_owned()),
        aliases: names.filter(|name| !name.is_empty()).collect(),
        template,
        variables: args.template.variables(),
        defaults: Defaults {
            sampler,
            stop: args.defaults.reverse_prompt.clone(),
            ignore_eos: args.defaults.ignore_eos,
            max_tokens: args.predict.map(limit),
            grammar: args.defaults.grammar.grammar()?.map(|(_, grammar)| grammar),
        },
        shows_special: args.defaults.special,
        is_plain: args.defaults.skip_chat_parsing,
        is_suffix_first: args.defaults.spm_infill,
        reasoning_budget: usize::try_from(args.template.reasoning_budget).ok(),
        reasoning_message: args.template.reasoning_budget_message.clone(),
        split_reasoning: args.reasoning_format != "none" && !args.template.hide_reasoning,
        slot_save_path: None,
        adapters: args.adapters.names(),
        build: version::short(),
    })
}
