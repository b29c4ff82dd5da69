//! Arguments for loading models: architecture override, device placement, memory mapping and adapters.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use engine::adapter::{ControlVector, LoraAdapter};
use engine::backend::reference::ReferenceDevice;
use engine::backend::{self, Device};
use engine::builder::MemoryParams;
use engine::context::Context;
use engine::gguf::Value;
use engine::model::{
    DeviceLayers, LoadParams, Model, ModelError, PlacementParams, SplitMode, TensorOverride, VocabHook,
};
use llama::parts::{load_or_use_cpu, usable_gpus};
use regex_lite::Regex;

use crate::args::PrecisionArg;
use crate::failure::{Failure, Outcome};
use crate::{interrupt, log, progress};

/// Architecture override and device placement options.
#[derive(Clone, Debug, Args)]
pub struct PlacementArgs {
    /// Architecture to load the file as; `auto` uses the file's metadata
    #[arg(long, value_name = "NAME", default_value = "auto", help_heading = LOADING)]
    pub arch: String,
    /// Override a metadata value; TYPE is int, float, bool or str (may be repeated)
    #[arg(long, value_name = "KEY=TYPE:VALUE", value_parser = override_kv, hide_short_help = true, help_heading = LOADING)]
    pub override_kv: Vec<(String, Value)>,
    /// Devices (-dev) for layers, comma-separated [default: all GPUs]
    ///
    /// `cuda` selects all CUDA GPUs, and `reference:MIB` a simulated device with this much memory. The CPU is
    /// always available.
    #[arg(long, value_name = "LIST", value_parser = device_list, hide_short_help = true, help_heading = LOADING)]
    pub device: Option<DeviceList>,
    /// Layers on GPUs (-ngl): a number, all, or auto (as many as fit) [default: auto]
    ///
    /// The last layers are placed first, and the output counts as one layer. If --device names only GPUs, it
    /// is an error if no layer fits.
    #[arg(long, value_name = "N", alias = "gpu-layers", value_parser = device_layers, hide_short_help = true, help_heading = LOADING)]
    pub n_gpu_layers: Option<DeviceLayers>,
    /// Fit layers and the default context size into free device memory
    ///
    /// Only applies without -ngl. `off` places all layers on the devices.
    #[arg(long, value_name = "MODE", value_parser = ["on", "off"], default_value = "on", hide_short_help = true, help_heading = LOADING)]
    pub fit: String,
    /// MiB to leave free on each device when fitting (-fitt) [default: 256]
    #[arg(long, value_name = "MIB", hide_short_help = true, help_heading = LOADING)]
    pub fit_target: Option<usize>,
    /// Fraction of the model per device (-ts), such as 3,1 [default: by free memory]
    ///
    /// Fractions apply to layers, or to rows with `--split-mode row`.
    #[arg(long, value_name = "SHARES", value_parser = share, value_delimiter = ',', hide_short_help = true, help_heading = LOADING)]
    pub tensor_split: Vec<f32>,
    /// Split of the model across devices (-sm): none, layer or row
    ///
    /// `row` splits each weight matrix; the CPU takes part if --device names it.
    #[arg(long, value_name = "MODE", value_enum, default_value_t = Split::Layer, hide_possible_values = true, hide_short_help = true, help_heading = LOADING)]
    pub split_mode: Split,
    /// Index of the main GPU (-mg)
    ///
    /// The main GPU runs the whole model with `--split-mode none`, and everything except split matrices with
    /// `row`.
    #[arg(long, value_name = "INDEX", default_value_t = 0, hide_short_help = true, help_heading = LOADING)]
    pub main_gpu: usize,
    /// Memory for tensors with matching names (-ot); first match wins (may be repeated)
    #[arg(long, value_name = "REGEX=MEMORY", value_parser = override_tensor, hide_short_help = true, help_heading = LOADING)]
    pub override_tensor: Vec<TensorOverride>,
    /// Keep the expert weights of all layers in host memory (-cmoe)
    #[arg(long, hide_short_help = true, help_heading = LOADING)]
    pub cpu_moe: bool,
    /// Keep the expert weights of the first N layers in host memory (-ncmoe)
    #[arg(long, value_name = "N", hide_short_help = true, help_heading = LOADING)]
    pub n_cpu_moe: Option<usize>,
    /// Keep the dense feed-forward weights of N layers in host memory (-ncffn)
    #[arg(long, value_name = "N", hide_short_help = true, help_heading = LOADING)]
    pub n_cpu_ffn: Option<usize>,
    /// Keep the KV cache in host memory (-nkvo)
    #[arg(long, overrides_with = "kv_offload", hide_short_help = true, help_heading = LOADING)]
    pub no_kv_offload: bool,
    /// Keep the KV cache on the device of each layer (-kvo) (default)
    #[arg(long, overrides_with = "no_kv_offload", hide_short_help = true, help_heading = LOADING)]
    pub kv_offload: bool,
    /// Run every matmul on the device that stores its weights
    #[arg(long, overrides_with = "op_offload", hide_short_help = true, help_heading = LOADING)]
    pub no_op_offload: bool,
    /// Run large matmuls with weights in host memory on a GPU (default)
    ///
    /// Weights repacked for the CPU are not offloaded (see --no-repack).
    #[arg(long, overrides_with = "no_op_offload", hide_short_help = true, help_heading = LOADING)]
    pub op_offload: bool,
    /// Use weights in the file's layout without repacking (-nr)
    ///
    /// Startup is faster and processes share the mapped file, but matmuls are slower.
    #[arg(long, overrides_with = "repack", hide_short_help = true, help_heading = LOADING)]
    pub no_repack: bool,
    /// Repack weights for fast matmuls (default)
    #[arg(long, overrides_with = "no_repack", hide_short_help = true, help_heading = LOADING)]
    pub repack: bool,
}

/// Model loading options.
#[derive(Clone, Debug, Args)]
pub struct LoadArgs {
    #[command(flatten)]
    pub placement: PlacementArgs,
    /// Read all weights into memory instead of mapping the file
    #[arg(long, hide_short_help = true, help_heading = LOADING)]
    pub no_mmap: bool,
    /// Lock the weights in memory
    #[arg(long, hide_short_help = true, help_heading = LOADING)]
    pub mlock: bool,
    /// Loading mode by llama.cpp name (-lm)
    ///
    /// `none` is --no-mmap, `mmap+mlock` is --mlock, and `mlock` is both. `auto` and `mmap` are the default.
    #[arg(long, value_name = "MODE", value_parser = ["auto", "none", "mmap", "mlock", "mmap+mlock"],
          conflicts_with_all = ["no_mmap", "mlock"], hide_short_help = true, help_heading = LOADING)]
    pub load_mode: Option<String>,
    /// Check all weights and reject a file with NaN or infinite values
    #[arg(long, hide_short_help = true, help_heading = LOADING)]
    pub check_tensors: bool,
    /// Load multi-token prediction layers, too.
    #[arg(skip)]
    pub mtp: bool,
}

/// Placement options of the draft model.
#[derive(Clone, Debug, Default, Args)]
pub struct DraftPlacementArgs {
    /// Devices for layers of the draft model (-devd) [default: --device]
    #[arg(long, value_name = "LIST", value_parser = device_list, requires = "draft", hide_short_help = true)]
    pub device_draft: Option<DeviceList>,
    /// Layers of the draft model on devices (-ngld) [default: --n-gpu-layers]
    #[arg(long, value_name = "N", alias = "gpu-layers-draft", value_parser = device_layers, requires = "draft", hide_short_help = true)]
    pub n_gpu_layers_draft: Option<DeviceLayers>,
}

/// LoRA adapter and control vector options.
#[derive(Clone, Debug, Default, Args)]
pub struct AdapterArgs {
    /// LoRA adapter and its scale (may be repeated, or comma-separated)
    #[arg(long, value_name = "FILE[=SCALE]", value_parser = scaled_file, value_delimiter = ',', hide_short_help = true, help_heading = ADAPTERS)]
    pub lora: Vec<ScaledFile>,
    /// LoRA adapter and its scale, in llama.cpp's syntax
    #[arg(long, value_name = "FILE:SCALE", value_parser = file_and_scale, value_delimiter = ',', hide_short_help = true, help_heading = ADAPTERS)]
    pub lora_scaled: Vec<ScaledFile>,
    /// Control vector and its scale (may be repeated, or comma-separated)
    #[arg(long, value_name = "FILE[=SCALE]", value_parser = scaled_file, value_delimiter = ',', hide_short_help = true, help_heading = ADAPTERS)]
    pub control_vector: Vec<ScaledFile>,
    /// Control vector and its scale, in llama.cpp's syntax
    #[arg(long, value_name = "FILE:SCALE", value_parser = file_and_scale, value_delimiter = ',', hide_short_help = true, help_heading = ADAPTERS)]
    pub control_vector_scaled: Vec<ScaledFile>,
    /// First and last layer that control vectors apply to [default: all]
    #[arg(long, num_args = 2, value_names = ["FIRST", "LAST"], hide_short_help = true, help_heading = ADAPTERS)]
    pub control_vector_layer_range: Option<Vec<usize>>,
}

const LOADING: &str = "Loading";
const ADAPTERS: &str = "Adapters";

/// Method of splitting a model across devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Split {
    /// The whole model on one device
    None,
    /// Whole layers per device
    Layer,
    /// Rows of every weight matrix per device
    Row,
}

/// Device names from the command line.
#[derive(Clone, Debug)]
pub struct DeviceList(Vec<String>);

/// An adapter file with its scale.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaledFile {
    path: PathBuf,
    scale: f32,
}

impl PlacementArgs {
    /// Returns memory overrides by tensor name. Explicit overrides precede the MoE and FFN flags.
    fn overrides(&self) -> Vec<TensorOverride> {
        let mut overrides = self.override_tensor.clone();
        let first = |n: usize| (0..n).map(|i| i.to_string()).collect::<Vec<_>>().join("|");
        let experts = match (self.cpu_moe, self.n_cpu_moe) {
            (true, _) => Some(r"\d+".to_owned()),
            (false, n) => n.filter(|&n| n > 0).map(first),
        };
        let experts = experts.map(|layers| Regex::new(&format!(r"^blk\.({layers})\.ffn_\w*exps\b")));
        let dense = self.n_cpu_ffn.filter(|&n| n > 0).map(first);
        let dense = dense.map(|layers| Regex::new(&format!(r"^blk\.({layers})\.ffn_(up|gate|down)\.")));
        let in_memory_of_cpu = |pattern| TensorOverride {
            pattern,
            buffer_type: "CPU".to_owned(),
        };
        overrides.extend([experts, dense].into_iter().flatten().flatten().map(in_memory_of_cpu));
        overrides
    }

    /// Converts the flags to engine parameters. Automatic placement leaves space for `memory`.
    pub fn params(&self, memory: Option<MemoryParams>) -> Outcome<LoadParams> {
        let devices = match &self.device {
            Some(list) => list.devices()?,
            None => usable_gpus(|device, error| {
                log::line(format_args!("warning: device {} is not used: {error}", device.name()));
            }),
        };
        let defaults = PlacementParams::default();
        let placement = PlacementParams {
            n_layers: match self.n_gpu_layers {
                Some(n) => n,
                None if self.fit == "on" => DeviceLayers::Auto,
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
            arch: (self.arch != "auto").then(|| self.arch.clone()),
            placement,
            overrides: self.override_kv.clone(),
            ..LoadParams::default()
        })
    }
}

impl LoadArgs {
    /// Converts the flags to engine parameters for contexts of this precision. Automatic placement leaves
    /// space for `memory`.
    pub fn params(&self, precision: PrecisionArg, memory: Option<MemoryParams>) -> Outcome<LoadParams> {
        let mut params = LoadParams {
            mmap: self
                .load_mode
                .as_ref()
                .map_or(!self.no_mmap, |mode| mode != "none" && mode != "mlock"),
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
        args.placement.arch = "auto".to_owned();
        args.placement.override_kv.clear();
        args
    }

    /// Loads a model. Shows a progress bar on terminals while weights are copied, and prints warnings. Ctrl-C
    /// aborts loading.
    pub fn load(
        &self,
        path: &std::path::Path,
        precision: PrecisionArg,
        memory: Option<MemoryParams>,
    ) -> Outcome<Arc<Model>> {
        self.load_and(path, precision, memory, None)
    }

    /// Like [`LoadArgs::load`], and calls `hook` as soon as the vocabulary is loaded.
    pub fn load_and(
        &self,
        path: &std::path::Path,
        precision: PrecisionArg,
        memory: Option<MemoryParams>,
        on_vocab: Option<VocabHook>,
    ) -> Outcome<Arc<Model>> {
        let mut params = self.params(precision, memory)?;
        params.on_vocab = on_vocab;
        let has_none = params.placement.devices.is_empty();
        let mut is_fitted = params.placement.n_layers == DeviceLayers::Auto;
        let stop = interrupt::listen();
        let (bar, flag) = (progress::bar("loading", STEPS), stop.flag());
        let bar = Arc::new(bar);
        let shown = bar.clone();
        params.progress = Some(Arc::new(move |done| {
            // The first and last call are unconditional; no other call means that nothing was copied.
            if done > 0.0 && done < 1.0 {
                shown.set((done * STEPS as f32) as usize);
            }
            !flag.load(std::sync::atomic::Ordering::Relaxed)
        }));
        let (model, fallback) = match self.placement.device {
            Some(_) => (Model::load(path, archs::ALL, &params), None),
            // An automatically selected device may fail; the CPU replaces it.
            None => load_or_use_cpu(path, &mut params),
        };
        if let Some(error) = fallback {
            log::line(format_args!("warning: {error}; using host memory instead"));
            is_fitted = false;
        }
        params.on_vocab = None;
        params.progress = None;
        drop(bar);
        let wants_devices = matches!(self.placement.n_gpu_layers, Some(DeviceLayers::Count(1..)));
        if wants_devices && has_none {
            log::line("warning: no GPU available, so -ngl has no effect; see `llama devices`");
        }
        let model = match model {
            Err(ModelError::Cancelled { .. }) => return Err(Failure::Interrupted),
            model => model?,
        };
        let placed = model.placement_summary();
        if is_fitted && !has_none && placed.n_offloaded < placed.n_layers {
            log::hint(format_args!(
                "{} of {} layers fit in free device memory; use -ngl to override",
                placed.n_offloaded, placed.n_layers
            ));
        }
        for warning in model.warnings() {
            log::line(format_args!("warning: {warning}"));
        }
        warn_of_another_arch(&model);
        Ok(Arc::new(model))
    }
}

/// Warns if `--arch` differs from the architecture in the file.
fn warn_of_another_arch(model: &Model) {
    let of_file = model.metadata().get("general.architecture").and_then(Value::as_str);
    let taken_for = model.arch().name;
    if let Some(of_file) = of_file.filter(|name| *name != taken_for) {
        log::line(format_args!(
            "warning: the file's architecture is {of_file}, but it is loaded as {taken_for}; output may be meaningless"
        ));
    }
}

impl AdapterArgs {
    /// Returns the adapter files, in the order of their ids in a context.
    pub fn names(&self) -> Vec<String> {
        let files = self.lora.iter().chain(&self.lora_scaled);
        files.map(|file| file.path.display().to_string()).collect()
    }

    /// Returns the options with all LoRA scales set to 0.
    pub fn without_effect(&self) -> AdapterArgs {
        let mut args = self.clone();
        let all = args.lora.iter_mut().chain(&mut args.lora_scaled);
        all.for_each(|file| file.scale = 0.0);
        args
    }

    /// Loads the adapters and applies them to a context.
    pub fn apply(&self, context: &mut Context) -> Outcome {
        let model = context.model().clone();
        let mut loras = Vec::new();
        for file in self.lora.iter().chain(&self.lora_scaled) {
            let adapter = LoraAdapter::load(&file.path, &model)?;
            if !adapter.ignored().is_empty() {
                let (path, names) = (file.path.display(), adapter.ignored().join(", "));
                log::line(format_args!(
                    "warning: {path}: adapted norms are not supported and ignored: {names}"
                ));
            }
            loras.push((Arc::new(adapter), file.scale));
        }
        context.set_adapters(&loras)?;

        let load = |file: &ScaledFile| ControlVector::load(&file.path, &model);
        let files = || self.control_vector.iter().chain(&self.control_vector_scaled);
        if self.control_vector_layer_range.is_some() && files().next().is_none() {
            return Err(Failure::new("--control-vector-layer-range requires --control-vector"));
        }
        let vectors = files().map(load).collect::<Result<Vec<_>, _>>()?;
        let scales = files().map(|file| file.scale);
        let vectors: Vec<_> = vectors.iter().zip(scales).collect();
        context.set_control_vectors(&vectors, self.layers(model.base().n_layer())?)?;
        Ok(())
    }

    fn layers(&self, n_layer: usize) -> Outcome<std::ops::RangeInclusive<usize>> {
        match self.control_vector_layer_range.as_deref() {
            Some(&[first, last]) if first <= last && first < n_layer => Ok(first..=last),
            Some(range) => Err(Failure::new(format_args!(
                "--control-vector-layer-range {range:?}: expected two ascending layers from 0 to {}",
                n_layer.saturating_sub(1)
            ))),
            None => Ok(0..=n_layer),
        }
    }
}

impl DeviceList {
    fn has_cpu(&self) -> bool {
        self.0.iter().any(|name| name == "cpu")
    }

    fn devices(&self) -> Outcome<Vec<Arc<dyn Device>>> {
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

/// Number of progress bar steps.
const STEPS: usize = 1000;

fn device_list(text: &str) -> Result<DeviceList, String> {
    let names: Vec<_> = text.split(',').map(|name| name.trim().to_owned()).collect();
    if names.iter().any(String::is_empty) {
        return Err("expected device names, separated by commas".to_owned());
    }
    Ok(DeviceList(names))
}

fn device_layers(text: &str) -> Result<DeviceLayers, String> {
    match text {
        "auto" => Ok(DeviceLayers::Auto),
        "all" => Ok(DeviceLayers::Count(usize::MAX)),
        _ => match text.parse() {
            Ok(n) => Ok(DeviceLayers::Count(n)),
            Err(_) => Err("expected a number of layers, `auto` or `all`".to_owned()),
        },
    }
}

fn share(text: &str) -> Result<f32, String> {
    let share = finite(text.trim()).filter(|x| *x >= 0.0);
    share.ok_or_else(|| "expected non-negative numbers, separated by commas".to_owned())
}

fn finite(text: &str) -> Option<f32> {
    text.parse().ok().filter(|x: &f32| x.is_finite())
}

/// Splits at the last `=`, because the regular expression may contain one.
fn override_tensor(text: &str) -> Result<TensorOverride, String> {
    let (pattern, memory) = text.rsplit_once('=').ok_or("expected REGEX=MEMORY")?;
    if pattern.is_empty() || memory.is_empty() {
        return Err("expected REGEX=MEMORY".to_owned());
    }
    Ok(TensorOverride {
        pattern: Regex::new(pattern).map_err(|e| format!("invalid regular expression {pattern:?}: {e}"))?,
        buffer_type: memory.to_owned(),
    })
}

fn override_kv(text: &str) -> Result<(String, Value), String> {
    let form = "expected KEY=TYPE:VALUE with TYPE int, float, bool or str";
    let (key, typed) = text.split_once('=').ok_or(form)?;
    let (ty, value) = typed.split_once(':').ok_or(form)?;
    let wrong = || format!("expected a value of type {ty}, found {value:?}");
    let value = match ty {
        _ if key.is_empty() => return Err(form.to_owned()),
        "int" => value.parse::<i64>().map(Value::from).map_err(|_| wrong())?,
        "float" => value.parse::<f64>().map(Value::from).map_err(|_| wrong())?,
        "bool" => value.parse::<bool>().map(Value::from).map_err(|_| wrong())?,
        "str" => value.into(),
        _ => return Err(form.to_owned()),
    };
    Ok((key.to_owned(), value))
}

/// Parses `FILE:SCALE`.
fn file_and_scale(text: &str) -> Result<ScaledFile, String> {
    let parts = text.rsplit_once(':').filter(|(path, _)| !path.is_empty());
    let (path, scale) = parts.ok_or("expected FILE:SCALE")?;
    Ok(ScaledFile {
        path: path.into(),
        scale: finite(scale).ok_or_else(|| format!("expected FILE:SCALE with a number, found {scale:?}"))?,
    })
}

/// Parses `FILE` or `FILE=SCALE`. The last `=` starts a scale only if a number follows.
fn scaled_file(text: &str) -> Result<ScaledFile, String> {
    let (path, scale) = match text.rsplit_once('=') {
        Some((path, scale)) if finite(scale).is_some() => (path, finite(scale).unwrap_or(1.0)),
        _ => (text, 1.0),
    };
    if path.is_empty() {
        return Err("expected FILE or FILE=SCALE".to_owned());
    }
    Ok(ScaledFile {
        path: path.into(),
        scale,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn override_kv_parses_types() {
        let value = |text: &str| override_kv(text).map(|(_, value)| value);
        assert_eq!(override_kv("a.b=int:-3"), Ok(("a.b".into(), Value::I64(-3))));
        assert_eq!(value("a=float:1e3"), Ok(Value::F64(1000.0)));
        assert_eq!(value("a=bool:true"), Ok(Value::Bool(true)));
        assert_eq!(value("a=str:x=y:z"), Ok("x=y:z".into()));
        for bad in ["a", "a=3", "a=int:x", "a=bool:1", "=int:3", "a=u8:3", "a=float:"] {
            assert!(override_kv(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn scale_follows_last_equals_sign() {
        let file = |path: &str, scale| {
            Ok(ScaledFile {
                path: path.into(),
                scale,
            })
        };
        assert_eq!(scaled_file("a.gguf"), file("a.gguf", 1.0));
        assert_eq!(scaled_file("a.gguf=0.5"), file("a.gguf", 0.5));
        assert_eq!(scaled_file("a=b.gguf=-2"), file("a=b.gguf", -2.0));
        assert_eq!(scaled_file("a=b.gguf"), file("a=b.gguf", 1.0));
        assert!(scaled_file("=1").is_err() && scaled_file("").is_err());
    }

    #[test]
    fn override_tensor_splits_at_last_equals_sign() {
        let o = override_tensor(r"ffn_(up|down)=x{1,2}=CPU").unwrap();
        assert_eq!(
            (o.pattern.as_str(), o.buffer_type.as_str()),
            ("ffn_(up|down)=x{1,2}", "CPU")
        );
        for bad in ["", "abc", "=CPU", "abc=", "a(=CPU"] {
            assert!(override_tensor(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn device_layers_parse_number_or_keyword() {
        assert_eq!(device_layers("7"), Ok(DeviceLayers::Count(7)));
        assert_eq!(device_layers("all"), Ok(DeviceLayers::Count(usize::MAX)));
        assert_eq!(device_layers("auto"), Ok(DeviceLayers::Auto));
        assert!(device_layers("-1").is_err() && device_layers("").is_err());
    }

    #[test]
    fn reference_device_has_requested_memory() {
        let memory = |name| device(name).map(|d| d.memory().1).map_err(|_| ());
        assert_eq!(memory("reference:5"), Ok(5 << 20));
        assert_eq!(memory("reference:x"), Err(()));
        assert_eq!(memory("reference:99999999999999999"), Err(()));
    }
}
