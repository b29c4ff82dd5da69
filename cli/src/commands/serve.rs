//! `llama serve`: a model for many clients, over HTTP.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::backend::ThreadPool;
use engine::context::{Context, ContextParams, MAX_SEQUENCES};
use engine::model::Model;
use engine::sample::Recommended;
use server::http::{App, ListenParams, Listener, Log, Record, serve};
use server::routes::{Router, router};
use server::scheduler::{Scheduler, Settings};
use server::served::{Served, ServedParams};
use tokio::sync::watch;

use crate::args::{ServeArgs, ServingArgs};
use crate::commands::{fleet, input, listen};
use crate::failure::{Failure, Outcome};
use crate::session::no_context;
use crate::{fetch, human, say, version};

/// Tokens of a context of which nothing is said, if the model was trained for as many.
const DEFAULT_CONTEXT: usize = 8192;
/// Threads that wait for connections; the model has others.
const N_THREADS: usize = 2;
/// Threads for what takes a moment, such as grammars and tokens of long texts.
const N_BLOCKING: usize = 16;

/// Ends taking requests.
type Close = Box<dyn Fn() + Send + Sync>;

/// Serves until it is told to end.
pub fn run(args: ServeArgs) -> Outcome {
    // Models are loaded by it as long as the program runs.
    let args: &'static ServeArgs = Box::leak(Box::new(args));
    let start = Instant::now();
    let keys = keys(args)?;
    for (name, why) in args.without_effect.given() {
        say::line(format_args!("{name} has no effect here: {why}"));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(N_THREADS)
        .max_blocking_threads(N_BLOCKING)
        .enable_all()
        .build()?;
    // Before the model is loaded: a port that is taken should not be found out later.
    let (listener, place) = listen::listen(args, !keys.is_empty(), &runtime)?;
    let log = args.verbose.then_some(tell as fn(&Record));
    let (routes, close): (Router, Close) = if let Some(folder) = &args.models_dir {
        let fleet = fleet::fleet(args, folder, keys, log)?;
        for name in &args.models_pin {
            let loaded = runtime.block_on(fleet.preload(name));
            loaded.map_err(|e| Failure::new(e.message))?;
        }
        say::line(format_args!(
            "{} at {place}, ready in {:.2} s",
            human::plural(fleet.n_models(), "model"),
            start.elapsed().as_secs_f64()
        ));
        (fleet.routes(), Box::new(move || fleet.close()))
    } else {
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
        let log = log.map(|tell| -> Log { Box::new(tell) });
        let app = Arc::new(App { served, keys, log });
        (router(app.clone()), Box::new(move || app.served.scheduler.close()))
    };
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

/// Serves until the first signal, then until requests under way are done, their time is over, or a second signal comes.
async fn until_told(listener: Listener, routes: Router, close: Close, params: ListenParams) -> Outcome {
    let (told, mut end) = watch::channel(0);
    let mut signals = Signals::new()?;
    tokio::spawn(async move {
        loop {
            signals.next().await;
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
    say::line(format_args!("{id} {method} {path} {} {ms:.1} ms", status.as_u16()));
}

/// Keys of the command line and of the file.
fn keys(args: &ServeArgs) -> Outcome<Vec<String>> {
    let mut keys = args.api_key.clone();
    if let Some(path) = &args.api_key_file {
        let text = input::read(path)?;
        let before = keys.len();
        keys.extend(
            text.lines()
                .map(str::trim)
                .filter(|line| !line.is_empty())
                .map(str::to_owned),
        );
        if keys.len() == before {
            return Err(Failure::new(format_args!("{}: there is no key in it", path.display())));
        }
    }
    match keys.iter().any(|key| key.trim().is_empty()) {
        true => Err(Failure::new("--api-key is empty: it would keep out nobody")),
        false => Ok(keys),
    }
}

/// The model with everything that it needs.
pub fn served(args: &ServingArgs, path: &Path) -> Outcome<Served> {
    let mut params = args.context.params();
    params.n_seq_max = (2 * args.n_parallel).min(MAX_SEQUENCES);
    params.n_batch = params.n_batch.max(args.n_parallel);
    params.n_outputs_max = params.n_seq_max;
    let memory = params.memory(args.context.ctx_size.unwrap_or(DEFAULT_CONTEXT));
    let model = args.load.load(path, args.context.precision, Some(memory))?;
    let n_train = model.base().n_ctx_train();
    params.n_ctx = args.context.ctx_size.unwrap_or(DEFAULT_CONTEXT.min(n_train.max(1)));
    // Contexts for texts and for vectors compute in turns.
    let n_threads = params.n_threads.max(params.n_threads_batch);
    params.thread_pool = Some(Arc::new(ThreadPool::new(n_threads)?));
    let settings = Settings {
        n_parallel: args.n_parallel.min(params.n_batch),
        max_waiting: args.max_waiting,
        t_step: Duration::from_millis(args.prompt_step),
    };
    let scheduler = if Scheduler::encodes(&model) {
        Scheduler::idle(model.clone(), settings)
    } else {
        let mut context = Context::new(model.clone(), &params).map_err(|e| no_context(&model, e))?;
        args.adapters.apply(&mut context)?;
        Scheduler::start(context, settings)?
    };
    let served = served_params(args, path, &model)?;
    let embedding = ContextParams {
        n_outputs_max: 0,
        ..params
    };
    Served::new(scheduler, served, embedding).map_err(|e| Failure::new(format_args!("{}: {e}", path.display())))
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
        Some(path) => Some(input::read(path)?),
        None => args.template.chat_template.clone(),
    };
    let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    Ok(ServedParams {
        name: args.alias.clone().or(stem).unwrap_or_else(|| "model".to_owned()),
        template,
        variables: args.template.variables(),
        sampler,
        max_tokens: usize::try_from(args.predict).ok(),
        split_reasoning: args.reasoning_format != "none" && !args.template.hide_reasoning,
        slot_save_path: None,
        adapters: args.adapters.names(),
        build: version::short(),
    })
}
