//! The flags of loading: what the file is taken for, where its weights go, how they get there, and what is added to them.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use engine::adapter::{ControlVector, LoraAdapter};
use engine::backend::reference::ReferenceDevice;
use engine::backend::{self, BackendError, Device, DeviceKind};
use engine::builder::MemoryParams;
use engine::context::Context;
use engine::gguf::Value;
use engine::model::{
    DeviceLayers, LoadParams, Model, ModelError, PlacementParams, SplitMode, TensorOverride, VocabHook,
};
use regex_lite::Regex;

use crate::args::PrecisionArg;
use crate::failure::{Failure, Outcome};
use crate::{interrupt, progress, say};

/// What a file is taken for, and where its weights go.
#[derive(Clone, Debug, Args)]
pub struct PlacementArgs {
    /// Architecture to load the file as; `auto` is what the file says
    #[arg(long, value_name = "NAME", default_value = "auto", help_heading = None)]
    pub arch: String,
    /// Metadata in place of the file's; TYPE is int, float, bool or str (may be repeated)
    #[arg(long, value_name = "KEY=TYPE:VALUE", value_parser = override_kv, hide_short_help = true, help_heading = LOADING)]
    pub override_kv: Vec<(String, Value)>,
    /// Devices (-dev) that hold layers, separated by commas; `cpu` is always there beside them, `cuda` are all cards, `reference:MIB` has so much memory [default: all GPUs]
    #[arg(long, value_name = "LIST", value_parser = device_list, hide_short_help = true, help_heading = LOADING)]
    pub device: Option<DeviceList>,
    /// Layers (-ngl) on the devices, the output being one and the last layers first: a number, `all`, or `auto`, as many as fit, and an error if none does on devices named without `cpu` [default: auto]
    #[arg(long, value_name = "N", alias = "gpu-layers", value_parser = device_layers, hide_short_help = true, help_heading = LOADING)]
    pub n_gpu_layers: Option<DeviceLayers>,
    /// Without -ngl: as many layers on the devices as fit in what is free of their memory, and a smaller context where the default one does not fit (on), or all (off)
    #[arg(long, value_name = "HOW", value_parser = ["on", "off"], default_value = "on", hide_short_help = true, help_heading = LOADING)]
    pub fit: String,
    /// MiB of each device (-fitt) that are left free where as many layers are placed as fit [default: 256]
    #[arg(long, value_name = "MIB", hide_short_help = true, help_heading = LOADING)]
    pub fit_target: Option<usize>,
    /// Share (-ts) of each device, of the layers or, with `--split-mode row`, of the rows, as in 3,1 [default: by free memory]
    #[arg(long, value_name = "SHARES", value_parser = share, value_delimiter = ',', hide_short_help = true, help_heading = LOADING)]
    pub tensor_split: Vec<f32>,
    /// How several devices (-sm) divide the model: none, layer or row (each matrix; `cpu` takes part if it is named)
    #[arg(long, value_name = "MODE", value_enum, default_value_t = Split::Layer, hide_possible_values = true, hide_short_help = true, help_heading = LOADING)]
    pub split_mode: Split,
    /// Number of the device (-mg), the CPU not counted, that has everything with `--split-mode none`, and with `row` all but the matrices
    #[arg(long, value_name = "INDEX", default_value_t = 0, hide_short_help = true, help_heading = LOADING)]
    pub main_gpu: usize,
    /// Memory (-ot) for the tensors whose names match; the first match counts (may be repeated)
    #[arg(long, value_name = "REGEX=MEMORY", value_parser = override_tensor, hide_short_help = true, help_heading = LOADING)]
    pub override_tensor: Vec<TensorOverride>,
    /// Keep the experts of all layers (-cmoe) in the memory of the CPU
    #[arg(long, hide_short_help = true, help_heading = LOADING)]
    pub cpu_moe: bool,
    /// Keep the experts of the first N layers (-ncmoe) in the memory of the CPU
    #[arg(long, value_name = "N", hide_short_help = true, help_heading = LOADING)]
    pub n_cpu_moe: Option<usize>,
    /// Keep the feed-forward matrices of the first N layers (-ncffn) in the memory of the CPU, other than experts
    #[arg(long, value_name = "N", hide_short_help = true, help_heading = LOADING)]
    pub n_cpu_ffn: Option<usize>,
    /// Keep the KV cache (-nkvo) in the memory of the CPU
    #[arg(long, overrides_with = "kv_offload", hide_short_help = true, help_heading = LOADING)]
    pub no_kv_offload: bool,
    /// Keep the KV cache (-kvo) where the layers are: the default
    #[arg(long, overrides_with = "no_kv_offload", hide_short_help = true, help_heading = LOADING)]
    pub kv_offload: bool,
    /// Compute products where their weights lie, those of prompts too
    #[arg(long, overrides_with = "op_offload", hide_short_help = true, help_heading = LOADING)]
    pub no_op_offload: bool,
    /// Let devices compute products of prompts with weights in the memory of the CPU, where that pays: the default. Weights that were arranged for the CPU (see --no-repack) stay there
    #[arg(long, overrides_with = "no_op_offload", hide_short_help = true, help_heading = LOADING)]
    pub op_offload: bool,
    /// Leave weights arranged as in the file (-nr), whose pages are then used in place: slower products, a faster start, and memory that programs share
    #[arg(long, overrides_with = "repack", hide_short_help = true, help_heading = LOADING)]
    pub no_repack: bool,
    /// Arrange weights for fast products: the default
    #[arg(long, overrides_with = "no_repack", hide_short_help = true, help_heading = LOADING)]
    pub repack: bool,
}

/// How a model is loaded.
#[derive(Clone, Debug, Args)]
pub struct LoadArgs {
    /// What is loaded, and where it goes
    #[command(flatten)]
    pub placement: PlacementArgs,
    /// Read all weights into memory instead of using the pages of the file
    #[arg(long, hide_short_help = true, help_heading = LOADING)]
    pub no_mmap: bool,
    /// Keep the weights in memory for good
    #[arg(long, hide_short_help = true, help_heading = LOADING)]
    pub mlock: bool,
    /// Both (-lm) as llama.cpp names them: auto or mmap, none (--no-mmap), mlock (--no-mmap --mlock) or mmap+mlock (--mlock)
    #[arg(long, value_name = "MODE", value_parser = ["auto", "none", "mmap", "mlock", "mmap+mlock"],
          conflicts_with_all = ["no_mmap", "mlock"], hide_short_help = true, help_heading = LOADING)]
    pub load_mode: Option<String>,
    /// Look at every weight, and refuse a file with values that are no finite numbers
    #[arg(long, hide_short_help = true, help_heading = LOADING)]
    pub check_tensors: bool,
    /// The layer of multi-token prediction too
    #[arg(skip)]
    pub mtp: bool,
}

/// Where a second model goes.
#[derive(Clone, Debug, Default, Args)]
pub struct DraftPlacementArgs {
    /// Devices (-devd) that hold layers of the smaller model [default: those of --device]
    #[arg(long, value_name = "LIST", value_parser = device_list, requires = "draft", hide_short_help = true)]
    pub device_draft: Option<DeviceList>,
    /// Layers of the smaller model (-ngld) on the devices [default: as --n-gpu-layers says]
    #[arg(long, value_name = "N", alias = "gpu-layers-draft", value_parser = device_layers, requires = "draft", hide_short_help = true)]
    pub n_gpu_layers_draft: Option<DeviceLayers>,
}

/// What is added to a loaded model.
#[derive(Clone, Debug, Default, Args)]
pub struct AdapterArgs {
    /// LoRA adapter, and the factor of its effect (may be repeated, or a list with commas)
    #[arg(long, value_name = "FILE[=SCALE]", value_parser = scaled_file, value_delimiter = ',', hide_short_help = true, help_heading = ADAPTERS)]
    pub lora: Vec<ScaledFile>,
    /// The same, as llama.cpp has it: the factor stands behind a colon
    #[arg(long, value_name = "FILE:SCALE", value_parser = file_and_scale, value_delimiter = ',', hide_short_help = true, help_heading = ADAPTERS)]
    pub lora_scaled: Vec<ScaledFile>,
    /// Control vector, and the factor of its effect (may be repeated, or a list with commas; all are added up)
    #[arg(long, value_name = "FILE[=SCALE]", value_parser = scaled_file, value_delimiter = ',', hide_short_help = true, help_heading = ADAPTERS)]
    pub control_vector: Vec<ScaledFile>,
    /// The same, as llama.cpp has it: the factor stands behind a colon
    #[arg(long, value_name = "FILE:SCALE", value_parser = file_and_scale, value_delimiter = ',', hide_short_help = true, help_heading = ADAPTERS)]
    pub control_vector_scaled: Vec<ScaledFile>,
    /// First and last layer that control vectors act on [default: all]
    #[arg(long, num_args = 2, value_names = ["FIRST", "LAST"], hide_short_help = true, help_heading = ADAPTERS)]
    pub control_vector_layer_range: Option<Vec<usize>>,
}

const LOADING: &str = "Loading";
const ADAPTERS: &str = "Adapters";

/// How several devices divide a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Split {
    /// One device has everything
    None,
    /// Each has whole layers
    Layer,
    /// Each has rows of every matrix
    Row,
}

/// Devices as named on the command line.
#[derive(Clone, Debug)]
pub struct DeviceList(Vec<String>);

/// A file, and the factor of its effect.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaledFile {
    path: PathBuf,
    scale: f32,
}

impl PlacementArgs {
    /// Memory for tensors by name; what was named itself comes before experts in general.
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

    /// The engine's settings. `memory`: what an automatic placement leaves room for.
    pub fn params(&self, memory: Option<MemoryParams>) -> Outcome<LoadParams> {
        let devices = match &self.device {
            Some(list) => list.devices()?,
            None => backend::devices()
                .into_iter()
                .filter(|d| d.kind() == DeviceKind::Gpu && is_usable(&**d))
                .collect(),
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
            // Whoever names devices and not `cpu` wants them to compute.
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

/// True if a device can be put to use. Else the CPU does without it, and a warning says why.
fn is_usable(device: &dyn Device) -> bool {
    let allocated = device.buffer_type().allocate(0);
    if let Err(error) = &allocated {
        say::line(format_args!("warning: {} is not used: {error}", device.name()));
    }
    allocated.is_ok()
}

impl LoadArgs {
    /// The engine's settings for contexts that compute with this precision. `memory`: what an automatic placement leaves room for.
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
        // Products with activations as floats read weights faster as they are in the file.
        params.placement.repack &= precision != PrecisionArg::Exact;
        Ok(params)
    }

    /// The same for a second model, of which what is said of the file does not hold.
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

    /// Loads a model, with a bar on terminals while weights are copied, and says what is unusual about the file. Ctrl-C
    /// ends it.
    pub fn load(
        &self,
        path: &std::path::Path,
        precision: PrecisionArg,
        memory: Option<MemoryParams>,
    ) -> Outcome<Arc<Model>> {
        self.load_and(path, precision, memory, None)
    }

    /// The same, with something that is begun as soon as the vocabulary is there.
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
            // Begin and end are told in any case: without anything between them nothing was copied.
            if done > 0.0 && done < 1.0 {
                shown.set((done * STEPS as f32) as usize);
            }
            !flag.load(std::sync::atomic::Ordering::Relaxed)
        }));
        let mut model = Model::load(path, archs::ALL, &params);
        params.on_vocab = None;
        if let Some(error) = self.failure_of_unnamed(&model, &params.placement.devices) {
            say::line(format_args!(
                "warning: {error}: everything is in the memory of the CPU instead"
            ));
            params.placement.devices.clear();
            is_fitted = false;
            model = Model::load(path, archs::ALL, &params);
        }
        params.progress = None;
        drop(bar);
        let wants_devices = matches!(self.placement.n_gpu_layers, Some(DeviceLayers::Count(1..)));
        if wants_devices && has_none {
            say::line("warning: there is no device for layers but the CPU; --device names some");
        }
        let model = match model {
            Err(ModelError::Cancelled { .. }) => return Err(Failure::Interrupted),
            model => model?,
        };
        let placed = model.placement_summary();
        if is_fitted && !has_none && placed.n_offloaded < placed.n_layers {
            say::aside(format_args!(
                "{} of {} layers are on devices, as many as fit in what is free there; -ngl says otherwise",
                placed.n_offloaded, placed.n_layers
            ));
        }
        for warning in model.warnings() {
            say::line(format_args!("warning: {warning}"));
        }
        warn_of_another_arch(&model);
        Ok(Arc::new(model))
    }

    /// What a device failed with while weights were loaded, if nobody named it: then the CPU does without it.
    fn failure_of_unnamed<'a>(
        &self,
        loaded: &'a Result<Model, ModelError>,
        devices: &[Arc<dyn Device>],
    ) -> Option<&'a BackendError> {
        let Err(ModelError::Backend { source, .. }) = loaded else {
            return None;
        };
        let place = match source {
            BackendError::OutOfMemory { buffer_type, .. } => buffer_type,
            BackendError::Device { device, .. } => device,
            _ => return None,
        };
        let is_its = |d: &Arc<dyn Device>| d.name() == place || d.buffer_type().name() == place;
        let is_unnamed = self.placement.device.is_none();
        (is_unnamed && devices.iter().any(is_its)).then_some(source)
    }
}

/// Says so where `--arch` is not what the file says: what comes out may mean nothing.
fn warn_of_another_arch(model: &Model) {
    let of_file = model.metadata().get("general.architecture").and_then(Value::as_str);
    let taken_for = model.arch().name;
    if let Some(of_file) = of_file.filter(|name| *name != taken_for) {
        say::line(format_args!(
            "warning: the file says that its architecture is {of_file}, and is loaded as {taken_for}: answers may mean nothing"
        ));
    }
}

impl AdapterArgs {
    /// The files of the adapters, in the order in which a context has them.
    pub fn names(&self) -> Vec<String> {
        let files = self.lora.iter().chain(&self.lora_scaled);
        files.map(|file| file.path.display().to_string()).collect()
    }

    /// The same, with factors of zero for LoRA adapters.
    pub fn without_effect(&self) -> AdapterArgs {
        let mut args = self.clone();
        let all = args.lora.iter_mut().chain(&mut args.lora_scaled);
        all.for_each(|file| file.scale = 0.0);
        args
    }

    /// Loads the adapters, and applies them to a context.
    pub fn apply(&self, context: &mut Context) -> Outcome {
        let model = context.model().clone();
        let mut loras = Vec::new();
        for file in self.lora.iter().chain(&self.lora_scaled) {
            let adapter = LoraAdapter::load(&file.path, &model)?;
            if !adapter.ignored().is_empty() {
                let (path, names) = (file.path.display(), adapter.ignored().join(", "));
                say::line(format_args!("warning: {path}: changed norms are not applied: {names}"));
            }
            loras.push((Arc::new(adapter), file.scale));
        }
        context.set_adapters(&loras)?;

        let load = |file: &ScaledFile| ControlVector::load(&file.path, &model);
        let files = || self.control_vector.iter().chain(&self.control_vector_scaled);
        if self.control_vector_layer_range.is_some() && files().next().is_none() {
            return Err(Failure::new(
                "--control-vector-layer-range says where control vectors act: give one by --control-vector",
            ));
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
                "--control-vector-layer-range is {range:?}, expected two layers of 0 to {} in order",
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
                    return Err(Failure::new(format_args!("--device names `{}` twice", device.name())));
                }
                devices.push(device);
            }
        }
        Ok(devices)
    }
}

/// The device of this name, or all of the family of this name.
fn devices_of(name: &str) -> Outcome<Vec<Arc<dyn Device>>> {
    let family = backend::registries().iter().find(|r| r.name() == name);
    match family.map(|r| r.devices()) {
        None => Ok(vec![device(name)?]),
        Some(devices) if devices.is_empty() => Err(no_device(name)),
        Some(devices) => Ok(devices),
    }
}

/// The device of this name; `reference:MIB` is one whose memory has that size.
fn device(name: &str) -> Outcome<Arc<dyn Device>> {
    if let Some(size) = name.strip_prefix("reference:") {
        let bytes = size.parse().ok().and_then(|n: usize| n.checked_mul(1 << 20));
        let bytes =
            bytes.ok_or_else(|| Failure::new(format_args!("device `{name}`: {size:?} is not a number of MiB")))?;
        return Ok(Arc::new(ReferenceDevice::with_memory(bytes)));
    }
    backend::device(name).ok_or_else(|| no_device(name))
}

/// The error for a name of no device, with what is wrong with those of its family.
fn no_device(name: &str) -> Failure {
    let names: Vec<_> = backend::devices().iter().map(|d| d.name().to_owned()).collect();
    let family = backend::registries().iter().filter(|r| name.starts_with(r.name()));
    let flaws: String = family
        .flat_map(|r| r.flaws())
        .map(|flaw| format!(" ({flaw})"))
        .collect();
    let names = names.join(", ");
    Failure::new(format_args!(
        "there is no device `{name}` here; there is {names}{flaws}"
    ))
}

/// Positions of the bar.
const STEPS: usize = 1000;

fn device_list(text: &str) -> Result<DeviceList, String> {
    let names: Vec<_> = text.split(',').map(|name| name.trim().to_owned()).collect();
    if names.iter().any(String::is_empty) {
        return Err("expected names of devices, separated by commas".to_owned());
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
    share.ok_or_else(|| "expected numbers that are not negative, separated by commas".to_owned())
}

fn finite(text: &str) -> Option<f32> {
    text.parse().ok().filter(|x: &f32| x.is_finite())
}

/// Regular expressions may hold a `=`, names of memory do not.
fn override_tensor(text: &str) -> Result<TensorOverride, String> {
    let (pattern, memory) = text.rsplit_once('=').ok_or("expected REGEX=MEMORY")?;
    if pattern.is_empty() || memory.is_empty() {
        return Err("expected REGEX=MEMORY".to_owned());
    }
    Ok(TensorOverride {
        pattern: Regex::new(pattern).map_err(|e| format!("{pattern:?} is no regular expression: {e}"))?,
        buffer_type: memory.to_owned(),
    })
}

fn override_kv(text: &str) -> Result<(String, Value), String> {
    let form = "expected KEY=TYPE:VALUE with a TYPE of int, float, bool or str";
    let (key, typed) = text.split_once('=').ok_or(form)?;
    let (ty, value) = typed.split_once(':').ok_or(form)?;
    let wrong = || format!("{value:?} is no {ty}");
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

/// `FILE:SCALE`.
fn file_and_scale(text: &str) -> Result<ScaledFile, String> {
    let parts = text.rsplit_once(':').filter(|(path, _)| !path.is_empty());
    let (path, scale) = parts.ok_or("expected FILE:SCALE")?;
    Ok(ScaledFile {
        path: path.into(),
        scale: finite(scale).ok_or_else(|| format!("expected FILE:SCALE, where {scale:?} is not a number"))?,
    })
}

/// `FILE=SCALE` if what follows the last `=` is a number, else all of it is a file.
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
    fn metadata_is_typed() {
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
    fn a_scale_follows_the_last_equals_sign() {
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
    fn patterns_and_memories_are_told_apart() {
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
    fn layers_are_a_number_or_a_word() {
        assert_eq!(device_layers("7"), Ok(DeviceLayers::Count(7)));
        assert_eq!(device_layers("all"), Ok(DeviceLayers::Count(usize::MAX)));
        assert_eq!(device_layers("auto"), Ok(DeviceLayers::Auto));
        assert!(device_layers("-1").is_err() && device_layers("").is_err());
    }

    #[test]
    fn simulated_memory_has_the_size_asked_for() {
        let memory = |name| device(name).map(|d| d.memory().1).map_err(|_| ());
        assert_eq!(memory("reference:5"), Ok(5 << 20));
        assert_eq!(memory("reference:x"), Err(()));
        assert_eq!(memory("reference:99999999999999999"), Err(()));
    }
}
