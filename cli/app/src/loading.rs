//! Loads models with the options of the command line.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use engine::backend::reference::ReferenceDevice;
use engine::backend::{self, Device, NumaMode, is_distributed, set_numa};
use engine::builder::MemoryParams;
use engine::context::ContextError;
use engine::gguf::{FileKind, Gguf, Value};
use engine::model::{DeviceLayers, FindArch, LoadParams, Model, ModelError, PlacementParams, SplitMode, VocabHook};
use llama::parts::{load_model, load_or_use_cpu, usable_gpus};
use tracing::warn;

use crate::args::{DeviceList, DraftPlacementArgs, LoadArgs, Numa, PlacementArgs, PrecisionArg, Split};
use crate::failure::{Failure, Outcome};
use crate::log::hint;
use crate::{checkpoints, declared, format, interrupt, progress};

/// Number of progress bar steps.
const STEPS: usize = 1000;

impl PlacementArgs {
    /// Converts the flags to engine parameters. Automatic placement leaves space for `memory`.
    pub fn params(&self, memory: Option<MemoryParams>) -> Outcome<LoadParams> {
        let devices = match &self.device {
            Some(list) => list.devices()?,
            None => usable_gpus(|device, error| {
                warn!("device {} is not used: {error}", device.name());
            }),
        };
        let defaults = PlacementParams::default();
        let placement = PlacementParams {
            n_layers: match self.n_gpu_layers {
                Some(n) => n,
                None if self.fit => DeviceLayers::Auto,
                None => DeviceLayers::Count(usize::MAX),
            },
            tensor_split: self.tensor_split.clone(),
            split_mode: match self.split_mode {
                Split::None => SplitMode::None,
                Split::Layer => SplitMode::Layer,
                Split::Row => SplitMode::Row,
            },
            main_device: self.main_gpu,
            overrides: self.overrides(),
            offload_kv: !self.no_kv_offload,
            offload_ops: !self.no_op_offload,
            repack: !self.no_repack,
            memory: memory.unwrap_or(defaults.memory),
            margin: self
                .fit_target
                .map_or(defaults.margin, |mib| mib.saturating_mul(1 << 20)),
            // Naming devices without `cpu` means that they must be used.
            needs_layer: self.device.as_ref().is_some_and(|list| !list.has_cpu()),
            devices,
        };
        Ok(LoadParams {
            placement,
            overrides: self.override_kv.clone(),
            ..arch_params(&self.arch)?
        })
    }
}

/// Returns true if a value of `--arch` is a path, but not the path of a declaration.
fn is_other_file(arch: &str) -> bool {
    let path = Path::new(arch);
    arch.contains(std::path::MAIN_SEPARATOR) || path.extension().is_some() && path.is_file()
}

/// Returns parameters with the architecture of a value of `--arch`.
pub fn arch_params(arch: &str) -> Outcome<LoadParams> {
    let declared = match arch {
        file if declared::is_file(file) => Some(*declared::load(Path::new(file))?),
        path if is_other_file(path) => {
            return Err(Failure::new(format_args!(
                "--arch {path}: expected the name of an architecture, or a declaration file (*.rs)"
            )));
        }
        _ => None,
    };
    Ok(LoadParams {
        arch: match (arch, declared) {
            ("auto" | declared::IN_FILE, _) => None,
            (_, Some(declared)) => Some(declared.arch.name.to_owned()),
            (name, None) => Some(name.to_owned()),
        },
        archs: declared.into_iter().collect(),
        read_arch: (arch == declared::IN_FILE).then(|| Arc::new(declared::read) as FindArch),
        find_arch: Some(declared::finder()),
        ..LoadParams::default()
    })
}

impl LoadArgs {
    /// Converts the flags to engine parameters for contexts of this precision. Automatic placement leaves
    /// space for `memory`.
    pub fn params(&self, precision: PrecisionArg, memory: Option<MemoryParams>) -> Outcome<LoadParams> {
        let mmap = match self.load_mode.as_deref() {
            Some("mmap" | "mmap+mlock") => true,
            Some("none" | "mlock") => false,
            _ => !self.no_mmap && !is_distributed(),
        };
        let mut params = LoadParams {
            mmap,
            mlock: self
                .load_mode
                .as_ref()
                .map_or(self.mlock, |mode| mode.contains("mlock")),
            check_tensors: self.check_tensors,
            mtp: self.mtp,
            ..self.placement.params(memory)?
        };
        // Matmuls with f32 activations are faster with the file's weight layout.
        params.placement.repack &= precision != PrecisionArg::Exact;
        Ok(params)
    }

    /// Returns the options for a draft model, without overrides that apply only to the target model.
    pub fn of_draft(&self, placement: &DraftPlacementArgs) -> LoadArgs {
        let mut args = self.clone();
        if placement.device_draft.is_some() {
            args.placement.device.clone_from(&placement.device_draft);
        }
        args.placement.n_gpu_layers = placement.n_gpu_layers_draft.or(args.placement.n_gpu_layers);
        args.mtp = false;
        args.quantize = None;
        args.placement.arch = "auto".to_owned();
        args.placement.override_kv.clear();
        args
    }

    /// Loads a model. Shows a progress bar on terminals while weights are copied, and prints warnings. Ctrl-C
    /// aborts loading.
    pub fn load(&self, path: &Path, precision: PrecisionArg, memory: Option<MemoryParams>) -> Outcome<Arc<Model>> {
        self.load_and(path, precision, memory, None)
    }

    /// Like [`LoadArgs::load`], and calls `hook` as soon as the vocabulary is loaded.
    pub fn load_and(
        &self,
        path: &Path,
        precision: PrecisionArg,
        memory: Option<MemoryParams>,
        on_vocab: Option<VocabHook>,
    ) -> Outcome<Arc<Model>> {
        start_workers(None)?;
        let of_checkpoint;
        let path = match self.quantize {
            Some(mixture) => {
                of_checkpoint = checkpoints::quantized(path, mixture, &self.placement.arch)?;
                &of_checkpoint
            }
            None => path,
        };
        let mut params = self.params(precision, memory)?;
        if params.arch.is_none() {
            params.archs.extend(checkpoints::declaration_of(path)?);
        }
        params.on_vocab = on_vocab;
        let has_none = params.placement.devices.is_empty();
        let is_cpu_only = params.placement.devices.iter().all(|device| device.name() == "cpu");
        let mut is_fitted = params.placement.n_layers == DeviceLayers::Auto && !is_cpu_only;
        let stop = interrupt::listen();
        let (bar, flag) = (progress::bar("loading", STEPS), stop.flag());
        let bar = Arc::new(bar);
        let shown = bar.clone();
        params.progress = Some(Arc::new(move |done| {
            // The first and last calls are unconditional; without calls in between, nothing was copied.
            if done > 0.0 && done < 1.0 {
                shown.set((done * STEPS as f32) as usize);
            }
            !flag.load(std::sync::atomic::Ordering::Relaxed)
        }));
        let (model, fallback) = match self.placement.device {
            Some(_) => (load_model(path, &params), None),
            // An automatically selected device may fail; the CPU replaces it.
            None => load_or_use_cpu(path, &mut params),
        };
        if let Some(error) = fallback {
            warn!("{error}; using host memory instead");
            is_fitted = false;
        }
        params.on_vocab = None;
        params.progress = None;
        drop(bar);
        let wants_devices = matches!(self.placement.n_gpu_layers, Some(DeviceLayers::Count(1..)));
        if wants_devices && has_none {
            warn!("no GPU available, so -ngl has no effect; see `llama devices`");
        }
        let model = match model {
            Err(ModelError::Cancelled { .. }) => return Err(Failure::Interrupted),
            model => model?,
        };
        let placed = model.placement_summary();
        if is_fitted && placed.n_offloaded < placed.n_layers {
            hint!(
                "{} of {} layers fit in free device memory; use -ngl to override",
                placed.n_offloaded,
                placed.n_layers
            );
        }
        for warning in model.warnings() {
            warn!("{warning}");
        }
        warn_of_another_arch(&model);
        Ok(Arc::new(model))
    }
}

/// Starts the threads that load or encode weights; `None` starts one per core. Their first use would panic if this
/// fails.
pub fn start_workers(n_threads: Option<usize>) -> Outcome {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads.unwrap_or(0));
    match pool.build_global() {
        // An error without a source: the threads exist.
        Err(error) if error.source().is_some() => Err(no_threads(&error)),
        _ => Ok(()),
    }
}

/// Creates the error for threads that cannot be started.
pub fn no_threads(error: &dyn Error) -> Failure {
    Failure::new(format_args!(
        "cannot start worker threads: {error}; raise the limits on threads and memory (ulimit -u, ulimit -v)"
    ))
}

/// Warns if `--arch` differs from the architecture in the file.
fn warn_of_another_arch(model: &Model) {
    let of_file = model.metadata().get("general.architecture").and_then(Value::as_str);
    let taken_for = model.arch().name;
    if let Some(of_file) = of_file.filter(|name| *name != taken_for) {
        warn!("the file's architecture is {of_file}, but it is loaded as {taken_for}; output may be meaningless");
    }
}

/// Returns an error if the header belongs to another kind of file.
pub fn check_kind(path: &Path, header: &Gguf, expected: &[FileKind]) -> Outcome {
    let kind = FileKind::of(&header.metadata, header.tensors().len());
    if expected.contains(&kind) {
        return Ok(());
    }
    let path = path.to_owned();
    Err(ModelError::NotAModel { path, kind }.into())
}

impl Numa {
    /// Applies the mode to all models and threads of this process.
    ///
    /// # Errors
    /// Returns a [`Failure`] if the CPUs of this machine are unknown.
    pub fn apply(self) -> Outcome<()> {
        let mode = match self {
            // CPUs outside of the affinity mask of the process are never used.
            Numa::Distribute | Numa::Numactl => NumaMode::Distribute,
            Numa::Isolate => NumaMode::Isolate,
        };
        match set_numa(mode) {
            0 => Err(Failure::new(
                "cannot use --numa: /sys/devices/system/cpu does not describe the CPUs of this machine; omit --numa",
            )),
            1 => {
                warn!("--numa only pins threads to cores: the process can use one NUMA node");
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// Warns if `n_threads` exceeds the number of CPUs. The threads wait for each other after each operation, so threads
/// without a CPU slow all others down.
pub fn warn_of_threads(n_threads: usize) {
    let n_cpus = std::thread::available_parallelism().map_or(usize::MAX, |n| n.get());
    if n_threads > n_cpus {
        warn!(
            "{} on {} are slower than one per CPU; use -t {n_cpus}",
            format::plural(n_threads, "thread"),
            format::plural(n_cpus, "CPU")
        );
    }
}

/// Creates the error for a context that does not fit in memory.
pub fn no_context(model: &Model, error: ContextError) -> Failure {
    let ContextError::KvMemory { n_ctx, bytes, .. } = error else {
        return error.into();
    };
    let free = match model.device().memory() {
        (_, 0) => String::new(),
        (free, _) => format!("; {} are free", format::bytes(free)),
    };
    Failure::new(format_args!(
        "cannot allocate the KV cache: {n_ctx} tokens need {}{free}; use a smaller context (-c) or a quantized cache (-ctk q8_0 -ctv q8_0)",
        format::bytes(bytes)
    ))
}

impl DeviceList {
    /// Returns the devices of the list.
    pub fn devices(&self) -> Outcome<Vec<Arc<dyn Device>>> {
        let mut devices: Vec<Arc<dyn Device>> = Vec::new();
        for name in &self.0 {
            for device in devices_of(name)? {
                if devices.iter().any(|d| d.name() == device.name()) {
                    return Err(Failure::new(format_args!(
                        "--device: duplicate device `{}`",
                        device.name()
                    )));
                }
                devices.push(device);
            }
        }
        Ok(devices)
    }
}

/// Returns the device of this name, or all devices of a family such as `cuda`.
fn devices_of(name: &str) -> Outcome<Vec<Arc<dyn Device>>> {
    let family = backend::registries().iter().find(|r| r.name() == name);
    match family.map(|r| r.devices()) {
        None => Ok(vec![device(name)?]),
        Some(devices) if devices.is_empty() => Err(no_device(name)),
        Some(devices) => Ok(devices),
    }
}

/// Returns a device by name; `reference:MIB` creates a simulated device with this much memory.
fn device(name: &str) -> Outcome<Arc<dyn Device>> {
    if let Some(size) = name.strip_prefix("reference:") {
        let bytes = size.parse().ok().and_then(|n: usize| n.checked_mul(1 << 20));
        let bytes = bytes.ok_or_else(|| {
            Failure::new(format_args!(
                "device `{name}`: expected a number of MiB, found {size:?}"
            ))
        })?;
        return Ok(Arc::new(ReferenceDevice::with_memory(bytes)));
    }
    backend::device(name).ok_or_else(|| no_device(name))
}

/// Creates the error for an unknown device, including why devices of its family are unusable.
fn no_device(name: &str) -> Failure {
    let names: Vec<_> = backend::devices().iter().map(|d| d.name().to_owned()).collect();
    let family = backend::registries().iter().filter(|r| name.starts_with(r.name()));
    let problems: String = family
        .flat_map(|r| r.problems())
        .map(|problem| format!(" ({problem})"))
        .collect();
    let names = names.join(", ");
    Failure::new(format_args!("unknown device `{name}`; available: {names}{problems}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reference_device_has_requested_memory() {
        let memory = |name| device(name).map(|d| d.memory().1).map_err(|_| ());
        assert_eq!(memory("reference:5"), Ok(5 << 20));
        assert_eq!(memory("reference:x"), Err(()));
        assert_eq!(memory("reference:99999999999999999"), Err(()));
    }
}
