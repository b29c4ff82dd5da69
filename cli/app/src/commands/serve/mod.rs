//! `llama serve`: serves models over HTTP.
//!
//! - [`args`][]: arguments
//! - [`listen`]: listening sockets
//! - [`model_pool`], [`preset`]: several models, with options in a file
//! - [`vertex`]: settings of Vertex AI

pub mod args;
mod listen;
mod model_pool;
mod preset;
mod vertex;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Command;
use server::guard::AccessPolicy;
use server::http::{ANY_ORIGIN, ListenParams, Listener, is_origin_entry, serve};
use server::router::{Router, router};
use tokio::sync::watch;
use tracing::info;

use crate::failure::{Failure, Outcome};
use crate::serving::{app, runtime};
use crate::{checkpoints, fetch, format, input, interrupt};
use args::ServeArgs;

/// Callback that stops accepting requests.
type Close = Box<dyn Fn() + Send + Sync>;

/// Serves requests until a signal arrives.
pub fn run(mut args: ServeArgs, program: Command) -> Outcome {
    let vertex = vertex::of_environment(&mut args.port)?;
    // Leaked, because models are loaded from it until the process exits.
    let args: &'static ServeArgs = Box::leak(Box::new(args));
    let start = Instant::now();
    let keys = keys(args)?;
    check_origins(args, !keys.is_empty())?;
    for notice in &args.without_effect.notices {
        info!("{notice}");
    }
    for (name, why) in args.without_effect.given() {
        info!("{name} has no effect: {why}");
    }
    let runtime = runtime()?;
    check_models(args)?;
    check_directories(args)?;
    // Bind before loading the model, to report a port conflict early.
    let (listener, place) = listen::listen(args, !keys.is_empty(), &runtime)?;
    let has_page = !args.no_webui && args.path.is_none();
    let gate = AccessPolicy {
        keys,
        page: has_page,
        folder: args.path.clone(),
        prefix: args.api_prefix.clone(),
        origins: args.cors_origins.clone(),
        is_public: args.insecure,
        vertex,
        media_bytes: args.serving.media.max_bytes(),
        logs_requests: args.verbose,
    };
    if args.serves_several() && args.serving.media.projector.mmproj.is_some() {
        return Err(Failure::new(
            "--mmproj belongs to a single model; put it next to the model, or set `mmproj` in a section of --models-preset",
        ));
    }
    let (routes, close) = if args.serves_several() {
        of_several(args, program, gate, &runtime, &place, start)?
    } else if args.sleep_idle_seconds >= 0 {
        of_sleeper(args, gate, &runtime, &place, start)?
    } else {
        of_model(args, gate, &place, start)?
    };
    if has_page && let Some(address) = place.strip_suffix("/v1") {
        info!("web page: {address}");
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
    program: Command,
    gate: AccessPolicy,
    runtime: &tokio::runtime::Runtime,
    place: &str,
    start: Instant,
) -> Outcome<(Router, Close)> {
    let (models, first) = model_pool::pool(args, program)?;
    for name in &first {
        let loaded = runtime.block_on(models.preload(name));
        loaded.map_err(|e| Failure::new(e.message))?;
    }
    info!(
        "serving {} at {place}, ready in {:.2} s",
        format::plural(models.n_models(), "model"),
        start.elapsed().as_secs_f64()
    );
    Ok((models.routes(gate), Box::new(move || models.close())))
}

/// Creates the routes for one model that is unloaded while it is idle.
fn of_sleeper(
    args: &'static ServeArgs,
    gate: AccessPolicy,
    runtime: &tokio::runtime::Runtime,
    place: &str,
    start: Instant,
) -> Outcome<(Router, Close)> {
    let path = fetch::model(args.first.as_deref().or(args.model.as_deref()), &args.serving.hub)?;
    let (models, name) = model_pool::sleeper(args, path);
    let loaded = runtime.block_on(models.preload(&name));
    loaded.map_err(|e| Failure::new(e.message))?;
    info!(
        "serving {name} at {place}, ready in {:.2} s",
        start.elapsed().as_secs_f64()
    );
    Ok((models.routes(gate), Box::new(move || models.close())))
}

/// Creates the routes for one model.
fn of_model(args: &ServeArgs, gate: AccessPolicy, place: &str, start: Instant) -> Outcome<(Router, Close)> {
    let path = fetch::model_to_serve(args.first.as_deref().or(args.model.as_deref()), &args.serving.hub)?;
    let mut app = app(&args.serving, &path)?;
    args.applied_to(&mut app.service.params);
    let (name, n_ctx) = (&app.service.params.name, app.service.n_ctx());
    info!(
        "serving {name} at {place}: {} of context, up to {}, ready in {:.2} s",
        format::plural(n_ctx, "token"),
        format::plural(args.serving.n_parallel, "parallel request"),
        start.elapsed().as_secs_f64()
    );
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
        info!("shutting down: finishing running requests, rejecting new ones; press Ctrl-C again to exit now");
    };
    let service = serve(listener, routes, params, first);
    tokio::select! {
        all = service => if all? { Ok(()) } else { Err(Failure::new("shutdown timeout reached; some requests were aborted")) },
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
    if !args.models_pin.is_empty() && !args.serves_several() {
        return Err(Failure::new("--models-pin requires --models-dir or --models-preset"));
    }
    Ok(())
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
    let is_directory = |path: &Path| path.is_dir() && !checkpoints::is_checkpoint(path);
    match model.filter(|model| is_directory(Path::new(model))) {
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
    if keys.iter().any(|key| key.trim().is_empty()) {
        return Err(Failure::new("--api-key must not be empty"));
    }
    Ok(keys)
}

/// Checks CORS origins. Allowing any origin requires an API key or `--insecure`.
fn check_origins(args: &ServeArgs, has_keys: bool) -> Outcome {
    for origin in &args.cors_origins {
        if origin == ANY_ORIGIN && !has_keys && !args.insecure {
            return Err(Failure::new(
                "--cors-origins '*' lets every web page use the model; set --api-key, or --insecure to allow access without a key",
            ));
        }
        if !is_origin_entry(origin) {
            return Err(Failure::new(format_args!(
                "--cors-origins {origin}: expected '*', localhost, or an origin without a path, such as https://example.org, https://*.example.org or http://127.0.0.1:*"
            )));
        }
    }
    Ok(())
}
