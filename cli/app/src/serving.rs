//! Loads a model with everything needed to serve it, for `llama serve` and `llama batch`.

use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use std::{io, thread};

use engine::backend::ThreadPool;
use engine::context::{Context, ContextParams, MAX_SEQUENCES};
use engine::model::Model;
use engine::speculate::DraftController;
use llama::parts::reserve_drafts;
use server::api::{Defaults, limit};
use server::app::App;
use server::chat::{ChatParams, MediaSources};
use server::media_encoder::{MediaQueue, encoder_threads};
use server::scheduler::{Scheduler, Settings, Speculation};
use server::service::{ModelService, ServiceParams};
use tokio::runtime::Runtime;
use tracing::warn;

use crate::args::{LoadArgs, ServingArgs};
use crate::drafting::Source;
use crate::failure::{Failure, Outcome};
use crate::loading::{no_context, no_threads, warn_of_threads};
use crate::{checkpoints, images, version};

/// Default context size in tokens, if the training context is not smaller.
const DEFAULT_CONTEXT: usize = 8192;

/// Maximum sequences with drafts by a model or MTP layer, which need memory each.
const MAX_DRAFTED: usize = 8;

/// Threads for connections; the model uses its own threads.
const N_THREADS: usize = 2;
/// Threads for blocking work, such as compiling grammars and tokenizing long prompts.
const N_BLOCKING: usize = 16;

/// Threads for blocking work that are started in advance. Tokio queues work if it cannot start another thread, and never
/// runs this work without such a thread.
const N_READY: usize = 2;
/// Time after which an idle thread for blocking work exits. Long, because a new one may exceed a limit.
const T_READY: Duration = Duration::from_secs(365 * 24 * 3600);

/// Starts the runtime for requests.
pub fn runtime() -> Outcome<Runtime> {
    check_threads(N_THREADS + N_READY).map_err(|e| no_threads(&e))?;
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder
        .worker_threads(N_THREADS)
        .max_blocking_threads(N_BLOCKING)
        .thread_keep_alive(T_READY)
        .enable_all();
    let runtime = builder.build()?;
    start_blocking_threads(&runtime).map_err(|e| no_threads(&e))?;
    Ok(runtime)
}

/// Starts the first threads for blocking work.
fn start_blocking_threads(runtime: &Runtime) -> io::Result<()> {
    let gate = Arc::new(Mutex::new(()));
    let (sender, started) = mpsc::channel();
    // Work that waits keeps its thread, so the next work starts another one.
    let closed = gate.lock();
    for _ in 0..N_READY {
        let (gate, sender) = (gate.clone(), sender.clone());
        runtime.spawn_blocking(move || {
            // The receiver exists until all threads have started.
            let _ = sender.send(());
            drop(gate.lock());
        });
    }
    for _ in 0..N_READY {
        let timed_out = |_| io::Error::from(io::ErrorKind::TimedOut);
        started.recv_timeout(Duration::from_secs(10)).map_err(timed_out)?;
    }
    drop(closed);
    Ok(())
}

/// Checks that `n` more threads can run at the same time. Tokio panics if its first thread cannot be started, and never
/// runs blocking work if only that thread can.
fn check_threads(n: usize) -> io::Result<()> {
    let gate = Mutex::new(());
    thread::scope(|scope| {
        // No thread exits before all of them have been started.
        let _closed = gate.lock();
        for _ in 0..n {
            thread::Builder::new().spawn_scoped(scope, || drop(gate.lock()))?;
        }
        Ok(())
    })
}

/// Loads a model with everything needed to serve it.
pub fn app(args: &ServingArgs, path: &Path) -> Outcome<App> {
    let mut params = args.context.params();
    params.n_seq_max = (2 * args.n_parallel).min(MAX_SEQUENCES);
    params.n_batch = params.n_batch.max(args.n_parallel);
    params.n_outputs_max = params.n_seq_max;
    warn_of_threads(params.n_threads.max(params.n_threads_batch));
    let plain = params.clone();
    let speculation = args.speculation.resolved()?;
    if speculation.is_wanted() {
        reserve_drafts(&mut params, args.n_parallel, speculation.mtp);
    }
    let memory = params.memory(args.context.ctx_size.unwrap_or(DEFAULT_CONTEXT));
    let load = LoadArgs {
        mtp: speculation.mtp,
        ..args.load.clone()
    };
    let model = load.load(path, args.context.precision.mode, Some(memory))?;
    let n_train = model.base().n_ctx_train();
    params.n_ctx = args.context.ctx_size.unwrap_or(DEFAULT_CONTEXT.min(n_train.max(1)));
    // Generation and embedding contexts take turns on one thread pool.
    let n_threads = params.n_threads.max(params.n_threads_batch);
    params.thread_pool = Some(Arc::new(ThreadPool::new(n_threads)?));
    let settings = Settings {
        n_parallel: args.n_parallel.min(params.n_batch),
        max_waiting: args.max_queue,
        shares_cache: args.share_cache,
        t_step: Duration::from_millis(args.prefill_budget_ms),
        ..Settings::default()
    };
    let media = media_encoder(args, &mut params, &model)?;
    let scheduler = if Scheduler::encodes(&model) {
        Scheduler::idle(model.clone(), settings)
    } else {
        let mut context = Context::new(model.clone(), &params).map_err(|e| no_context(&model, e))?;
        if args.defaults.lora_init_without_apply {
            args.adapters.without_effect().apply(&mut context)?
        } else {
            args.adapters.apply(&mut context)?
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
        media_rows: params.media_rows,
        thread_pool: params.thread_pool,
        ..plain
    };
    let service = ModelService::with_media(scheduler, service, chat, media);
    let service = service.map_err(|e| Failure::new(format_args!("{}: {e}", path.display())))?;
    // Report constraint errors at startup instead of on the first request.
    service.constraint(None).map_err(|e| Failure::new(e.message))?;
    Ok(App::new(service, embedding))
}

/// Loads the projector, if the model has one, and reserves space for the rows of a medium in the context.
fn media_encoder(args: &ServingArgs, params: &mut ContextParams, model: &Model) -> Outcome<Option<MediaQueue>> {
    let media = &args.media;
    // Separate threads, so that encoding does not delay running completions.
    let encoder_params = ContextParams {
        thread_pool: Some(encoder_threads(params.n_threads_batch)?),
        ..params.clone()
    };
    let precision = args.context.precision.mode;
    let projector = images::projector(
        &media.projector,
        &args.hub,
        &args.load,
        precision,
        &encoder_params,
        model,
    )?;
    let Some(projector) = projector else {
        if media.has_sources() {
            let model = model.path().display();
            warn!("--media-path and --media-domains have no effect: {model} has no projector; add one with --mmproj");
        }
        return Ok(None);
    };
    params.media_rows = projector.n_rows();
    let sources = MediaSources::new(media.media_path.as_deref(), &media.media_domains);
    let sources = sources.map_err(|e| Failure::new(format_args!("--media-path: {e}")))?;
    let queue = MediaQueue::new(projector, media.limits(), media.cache_bytes())?;
    Ok(Some(queue.with_sources(sources)))
}

/// Returns the settings of chats.
fn chat_params(args: &ServingArgs) -> Outcome<ChatParams> {
    Ok(ChatParams {
        template: args.template.source()?,
        parses_content: args.template.parse_special_content,
        variables: args.template.variables(),
        raw_output: args.defaults.skip_chat_parsing,
        split_reasoning: args.reasoning_format != "none" && !args.template.hide_reasoning,
        reasoning_budget: usize::try_from(args.template.reasoning_budget).ok(),
        reasoning_message: args.template.reasoning_budget_message.clone(),
        media: None,
    })
}

/// Returns the settings of the service and the defaults of its requests.
fn served_params(args: &ServingArgs, path: &Path, model: &Model) -> Outcome<ServiceParams> {
    let sampler = args.sampler.params(model)?;
    let stem = checkpoints::name_of(path);
    let mut names = args.alias.iter().map(|name| name.trim().to_owned());
    let first = names.next().filter(|name| !name.is_empty()).or(stem);
    Ok(ServiceParams {
        name: first.unwrap_or_else(|| "model".to_owned()),
        path: path.to_owned(),
        aliases: names.filter(|name| !name.is_empty()).collect(),
        tags: args.labels(),
        defaults: Defaults {
            sampler,
            stop: args.defaults.reverse_prompt.clone(),
            ignore_eos: args.defaults.ignore_eos,
            max_tokens: args.predict.map(limit),
            grammar: args.defaults.grammar.grammar()?.map(|(_, grammar)| grammar),
            strict_fields: args.defaults.strict_fields,
            verbose: false,
        },
        show_special_tokens: args.defaults.special,
        suffix_first: args.defaults.spm_infill,
        has_slots: true,
        slot_save_path: None,
        slot_save_limit: u64::MAX,
        adapters: args.adapters.names(),
        media_limits: args.media.limits(),
        build: version::short(),
    })
}
