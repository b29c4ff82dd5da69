//! Arguments for placing a model on devices.

use clap::{ArgAction, Args, ValueEnum};
use engine::gguf::Value;
use engine::model::{DeviceLayers, TensorOverride};
use regex_lite::Regex;

use super::values::{finite, on_off};

/// Help heading of the options.
pub const LOADING: &str = "Loading";

/// Architecture override and device placement options.
#[derive(Clone, Debug, Args)]
pub struct PlacementArgs {
    /// Architecture, or a declaration FILE.rs; `auto`: from the file
    ///
    /// A declaration file needs no build. `file:` uses the declaration in the model file. `auto` also finds
    /// declarations in the directory LLAMA_ARCHS and in `~/.config/llama/archs`.
    #[arg(long, value_name = "NAME", default_value = "auto", help_heading = LOADING)]
    pub arch: String,
    /// Override a metadata value; TYPE is int, float, bool, or str (may be repeated)
    #[arg(long, value_name = "KEY=TYPE:VALUE", value_parser = override_kv, hide_short_help = true, help_heading = LOADING)]
    pub override_kv: Vec<(String, Value)>,
    /// Devices (-dev) for layers, comma-separated [default: all GPUs]
    ///
    /// `cuda` selects all CUDA GPUs, `none` no GPU, and `reference:MIB` a simulated device with this much memory.
    /// The CPU is always available.
    #[arg(long, value_name = "LIST", value_parser = device_list, hide_short_help = true, help_heading = LOADING)]
    pub device: Option<DeviceList>,
    /// Layers on GPUs (-ngl): a number, all, or auto (as many as fit) [default: auto]
    ///
    /// The last layers are placed first, and the output counts as one layer. If --device names only GPUs, it
    /// is an error if no layer fits.
    #[arg(long, value_name = "N", alias = "gpu-layers", value_parser = device_layers, allow_negative_numbers = true, hide_short_help = true, help_heading = LOADING)]
    pub n_gpu_layers: Option<DeviceLayers>,
    /// Fit layers and the default context size into free device memory
    ///
    /// Only applies without -ngl. `off` places all layers on the devices.
    #[arg(long, value_name = "MODE", action = ArgAction::Set, value_parser = on_off(), ignore_case = true, default_value = "on", hide_short_help = true, help_heading = LOADING)]
    pub fit: bool,
    /// MiB to leave free on each device when fitting (-fitt) [default: 256]
    #[arg(long, value_name = "MIB", hide_short_help = true, help_heading = LOADING)]
    pub fit_target: Option<usize>,
    /// Fraction of the model per device (-ts), such as 3,1 [default: by free memory]
    ///
    /// Fractions apply to layers, or to rows with `--split-mode row`.
    #[arg(long, value_name = "SHARES", value_parser = share, value_delimiter = ',', hide_short_help = true, help_heading = LOADING)]
    pub tensor_split: Vec<f32>,
    /// Split of the model across devices (-sm): none, layer, or row
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

/// Placement options of the draft model.
#[derive(Clone, Debug, Default, Args)]
pub struct DraftPlacementArgs {
    /// Devices for layers of the draft model (-devd) [default: --device]
    #[arg(long, value_name = "LIST", value_parser = device_list, requires = "draft", hide_short_help = true)]
    pub device_draft: Option<DeviceList>,
    /// Layers of the draft model on devices (-ngld) [default: --n-gpu-layers]
    #[arg(long, value_name = "N", alias = "gpu-layers-draft", value_parser = device_layers, allow_negative_numbers = true, requires = "draft", hide_short_help = true)]
    pub n_gpu_layers_draft: Option<DeviceLayers>,
}

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
pub struct DeviceList(pub Vec<String>);

impl PlacementArgs {
    /// Returns memory overrides by tensor name. Explicit overrides precede the MoE and FFN flags.
    pub fn overrides(&self) -> Vec<TensorOverride> {
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
}

impl DeviceList {
    /// Returns true if the CPU is listed.
    pub fn has_cpu(&self) -> bool {
        self.0.iter().any(|name| name == "cpu")
    }
}

/// Parses device names, separated by commas.
pub fn device_list(text: &str) -> Result<DeviceList, String> {
    // llama.cpp's name for the CPU alone.
    let text = if text == "none" { "cpu" } else { text };
    let names: Vec<_> = text.split(',').map(|name| name.trim().to_owned()).collect();
    if names.iter().any(String::is_empty) {
        return Err("expected device names, separated by commas".to_owned());
    }
    Ok(DeviceList(names))
}

/// Parses a number of layers. Like llama.cpp, -1 is `auto` and -2 is `all`.
fn device_layers(text: &str) -> Result<DeviceLayers, String> {
    match text {
        "auto" | "-1" => Ok(DeviceLayers::Auto),
        "all" | "-2" => Ok(DeviceLayers::Count(usize::MAX)),
        _ => match text.parse() {
            Ok(n) => Ok(DeviceLayers::Count(n)),
            Err(_) => Err("expected a number of layers, `auto`, or `all`".to_owned()),
        },
    }
}

fn share(text: &str) -> Result<f32, String> {
    let share = finite(text.trim()).filter(|x| *x >= 0.0);
    share.ok_or_else(|| "expected non-negative numbers, separated by commas".to_owned())
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

/// Parses a metadata key with the type and value that replace it.
pub fn override_kv(text: &str) -> Result<(String, Value), String> {
    let form = "expected KEY=TYPE:VALUE with TYPE int, float, bool, or str";
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
        assert_eq!(device_layers("-1"), Ok(DeviceLayers::Auto));
        assert_eq!(device_layers("-2"), Ok(DeviceLayers::Count(usize::MAX)));
        assert!(device_layers("-3").is_err() && device_layers("").is_err());
    }
}
