//! `llama inspect`: prints the metadata and tensors of a GGUF file as text or JSON.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use engine::gguf::split::SplitInfo;
use engine::gguf::{Array, Gguf, Metadata, Value};
use engine::model::{LoadParams, projector_types};
use serde::Serialize;
use serde_json::{Map, json};

use crate::args::PlanArgs;
use crate::commands::{plan, projector, stdout};
use crate::failure::{Failure, Outcome};
use crate::printable::printable;
use crate::{checkpoints, declared, format};

/// Arguments of `llama inspect`.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct InspectArgs {
    /// GGUF file (tensor data may be missing), checkpoint directory, or model name
    #[arg(value_name = "MODEL", required_unless_present_any = ["hf_repo", "model_url"])]
    pub file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print long arrays in full
    #[arg(long)]
    pub arrays: bool,
    /// Print where each part of the model would be placed, without loading it
    #[arg(long)]
    pub plan: bool,
    /// Print the planned device and size of each tensor
    #[arg(long)]
    pub plan_tensors: bool,
    #[command(flatten)]
    pub planned: PlanArgs,
}

/// Arguments of `llama gguf dump`.
#[derive(Debug, Args)]
pub struct DumpArgs {
    /// GGUF file; tensor data may be missing
    pub file: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Value of `--arch` that selects the architecture of the file.
const AUTO: &str = "auto";

/// Maximum length of arrays that are printed in full.
const SHORT_ARRAY: usize = 16;

/// Prints the header of a file.
pub fn run(args: &InspectArgs) -> Outcome {
    let file = args.planned.hub.file(args.file.as_deref())?;
    let file = &file.ok_or_else(|| Failure::new("no model given"))?;
    let header = checkpoints::header(file, &args.planned.placement.arch)?;
    if args.plan || args.plan_tensors {
        let output = plan::Output {
            json: args.json,
            tensors: args.plan_tensors,
        };
        return plan::run(&args.planned, output, file, &header);
    }
    report(&header, file, &args.planned.placement.arch, args.json, args.arrays)
}

/// Prints the header of a file with whole arrays.
pub fn dump(args: &DumpArgs) -> Outcome {
    report(&Gguf::open_header(&args.file)?, &args.file, AUTO, args.json, true)
}

fn report(header: &Gguf, file: &Path, arch: &str, is_json: bool, whole_arrays: bool) -> Outcome {
    let report = Report::new(header, file, arch, whole_arrays)?;
    let mut out = stdout();
    if is_json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else {
        print(&mut out, header, &report, whole_arrays)?;
    }
    Ok(out.flush()?)
}

/// Report, printed as text or JSON.
#[derive(Serialize)]
struct Report<'a> {
    file: String,
    file_bytes: u64,
    gguf_version: u32,
    alignment: usize,
    data_offset: usize,
    /// Bytes of tensor data missing from the file.
    missing_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    split: Option<Split>,
    architecture: Option<&'a str>,
    name: Option<&'a str>,
    declaration: Declaration,
    /// Size of the declaration that the file contains, which `--arch file:` selects.
    #[serde(skip_serializing_if = "Option::is_none")]
    contained_declaration_bytes: Option<usize>,
    n_parameters: usize,
    tensor_bytes: usize,
    /// Number of tensors and bytes by type.
    types: BTreeMap<&'static str, TypeTotal>,
    hyper_parameters: Map<String, serde_json::Value>,
    vocabulary: Option<Vocabulary<'a>>,
    metadata: Map<String, serde_json::Value>,
    tensors: Vec<Tensor<'a>>,
}

#[derive(Serialize)]
struct Split {
    part: u32,
    parts: u32,
}

/// Whether the file matches the architecture's declaration.
#[derive(Serialize)]
#[serde(rename_all = "snake_case", tag = "status", content = "detail")]
enum Declaration {
    /// The file does not name an architecture.
    None,
    /// The architecture is not declared.
    Unknown,
    /// Every tensor of the file is declared and present.
    Matches,
    /// The remaining tensors are in other shards of the model.
    Partial,
    /// The file has no tensors, as in vocabulary-only files.
    NoTensors,
    /// The file does not match, as described.
    Differs(String),
}

#[derive(Serialize, Default)]
struct TypeTotal {
    tensors: usize,
    bytes: usize,
}

#[derive(Serialize)]
struct Vocabulary<'a> {
    model: &'a str,
    pre: Option<&'a str>,
    n_tokens: Option<usize>,
    n_merges: Option<usize>,
    /// Special tokens of the vocabulary by role.
    special: BTreeMap<&'a str, Special>,
    chat_template_bytes: Option<usize>,
}

#[derive(Serialize)]
struct Special {
    id: u64,
    text: Option<String>,
}

#[derive(Serialize)]
struct Tensor<'a> {
    name: &'a str,
    shape: &'a [usize],
    #[serde(rename = "type")]
    ty: &'static str,
    bytes: usize,
    offset: usize,
}

impl<'a> Report<'a> {
    fn new(header: &'a Gguf, file: &Path, arch: &str, whole_arrays: bool) -> Outcome<Report<'a>> {
        let metadata = &header.metadata;
        let is_checkpoint = checkpoints::is_checkpoint(file);
        let (file_bytes, needed) = if is_checkpoint {
            (checkpoints::n_bytes(file), 0)
        } else {
            let needed = header.required_len().map_or(0, |(_, len)| len as u64);
            (fs::metadata(file)?.len(), needed)
        };
        let architecture = text(metadata, "general.architecture");
        let split = SplitInfo::from_metadata(metadata).map_err(|e| e.in_file(file))?;
        let mut types = BTreeMap::<_, TypeTotal>::new();
        for t in header.tensors() {
            let total = types.entry(t.ty.name()).or_default();
            total.tensors += 1;
            total.bytes = total.bytes.saturating_add(t.bytes);
        }
        let pair = |(key, value): (&str, &Value)| (key.to_owned(), to_json(value, whole_arrays));
        let own = |key: &str| key.split('.').next() == architecture;
        let tensor = |t: &'a engine::gguf::TensorInfo| Tensor {
            name: &t.name,
            shape: t.shape(),
            ty: t.ty.name(),
            bytes: t.bytes,
            offset: t.offset,
        };
        Ok(Report {
            file: file.display().to_string(),
            file_bytes,
            gguf_version: header.version,
            alignment: header.alignment(),
            data_offset: header.data_offset(),
            missing_bytes: needed.saturating_sub(file_bytes),
            declaration: declaration(header, file, architecture, arch, split.is_some())?,
            contained_declaration_bytes: declared::text(metadata).map(str::len),
            split: split.map(|s| Split {
                part: u32::from(s.no) + 1,
                parts: s.count.into(),
            }),
            architecture,
            name: text(metadata, "general.name"),
            n_parameters: header
                .tensors()
                .iter()
                .fold(0, |n: usize, t| n.saturating_add(t.n_elements())),
            tensor_bytes: types.values().fold(0, |n: usize, t| n.saturating_add(t.bytes)),
            types,
            hyper_parameters: metadata.iter().filter(|(key, _)| own(key)).map(pair).collect(),
            vocabulary: Vocabulary::new(metadata),
            metadata: metadata.iter().map(pair).collect(),
            tensors: header.tensors().iter().map(tensor).collect(),
        })
    }
}

fn declaration(
    header: &Gguf,
    file: &Path,
    architecture: Option<&str>,
    chosen: &str,
    is_split: bool,
) -> Outcome<Declaration> {
    let Some(name) = architecture else {
        return Ok(Declaration::None);
    };
    let Some(registered) = declared::of_file(name, chosen, &header.metadata, file)? else {
        return Ok(Declaration::Unknown);
    };
    if is_split {
        return Ok(Declaration::Partial);
    }
    if header.tensors().is_empty() {
        return Ok(Declaration::NoTensors);
    }
    let prefix = registered.arch.key_prefix(name);
    let declared = engine::model::declare_header(header, file, registered.arch, prefix);
    Ok(match declared {
        Ok(_) => Declaration::Matches,
        Err(e) => Declaration::Differs(e.to_string()),
    })
}

impl<'a> Vocabulary<'a> {
    fn new(metadata: &'a Metadata) -> Option<Vocabulary<'a>> {
        let array = |key: &str| metadata.get(key).and_then(Value::as_array);
        let tokens = array("tokenizer.ggml.tokens");
        let role = |key: &'a str| key.strip_prefix("tokenizer.ggml.")?.strip_suffix("_token_id");
        let special = |(key, value): (&'a str, &Value)| {
            let (role, id) = (role(key)?, value.as_u64()?);
            let text = tokens.and_then(|tokens| tokens.get(usize::try_from(id).ok()?)?.as_str().map(str::to_owned));
            Some((role, Special { id, text }))
        };
        Some(Vocabulary {
            model: text(metadata, "tokenizer.ggml.model")?,
            pre: text(metadata, "tokenizer.ggml.pre"),
            n_tokens: tokens.map(Array::len),
            n_merges: array("tokenizer.ggml.merges").map(Array::len),
            special: metadata.iter().filter_map(special).collect(),
            chat_template_bytes: metadata
                .get("tokenizer.chat_template")
                .and_then(|v| Some(v.as_bytes()?.len())),
        })
    }
}

fn text<'a>(metadata: &'a Metadata, key: &str) -> Option<&'a str> {
    metadata.get(key).and_then(Value::as_str)
}

/// Converts a value to JSON. Long arrays become their type and length unless `full` is set.
fn to_json(value: &Value, full: bool) -> serde_json::Value {
    match value {
        Value::String(bytes) => String::from_utf8_lossy(bytes).into(),
        Value::Bool(v) => (*v).into(),
        Value::F32(v) => shortest(*v),
        Value::F64(v) => json!(v),
        Value::Array(array) if full || array.len() <= SHORT_ARRAY => {
            let element = |i| array.get(i).map_or(serde_json::Value::Null, |v| to_json(&v, full));
            (0..array.len()).map(element).collect()
        }
        Value::Array(array) => json!({ "array_of": array.element_type().to_string(), "length": array.len() }),
        integer => match (integer.as_u64(), integer.as_i64()) {
            (Some(v), _) => v.into(),
            (None, Some(v)) => v.into(),
            (None, None) => serde_json::Value::Null,
        },
    }
}

/// Converts a number to its shortest f32 representation: 1e-5, not 0.000009999999747378752.
fn shortest(v: f32) -> serde_json::Value {
    v.to_string()
        .parse::<f64>()
        .map_or(serde_json::Value::Null, |v| json!(v))
}

fn print(out: &mut dyn Write, header: &Gguf, report: &Report<'_>, whole_arrays: bool) -> Outcome {
    let size = usize::try_from(report.file_bytes).unwrap_or(usize::MAX);
    let keys = format::plural(header.metadata.len(), "key");
    let tensors = format::plural(report.tensors.len(), "tensor");
    writeln!(
        out,
        "{}: GGUF v{}, {}, {keys}, {tensors}",
        report.file,
        report.gguf_version,
        format::bytes(size)
    )?;
    if report.missing_bytes > 0 {
        let missing = format::bytes(usize::try_from(report.missing_bytes).unwrap_or(usize::MAX));
        writeln!(out, "note: the file is truncated; {missing} of tensor data are missing")?;
    }
    if let Some(split) = &report.split {
        writeln!(out, "note: shard {} of {}", split.part, split.parts)?;
    }
    writeln!(out, "\narchitecture  {}", report.architecture.unwrap_or("(not given)"))?;
    if let Some(name) = report.name {
        writeln!(out, "name          {}", printable(name))?;
    }
    for (_, encoder) in projector_types(&header.metadata) {
        writeln!(out, "encoder       {}", printable(encoder))?;
    }
    if !projector_types(&header.metadata).is_empty() {
        print_media(out, header, Path::new(&report.file))?;
    }
    writeln!(out, "declaration   {}", describe(&report.declaration))?;
    if let Some(bytes) = report.contained_declaration_bytes {
        let bytes = format::bytes(bytes);
        writeln!(
            out,
            "              the file contains a declaration of {bytes}: --arch file: uses it"
        )?;
    }
    writeln!(out, "parameters    {}", format::count(report.n_parameters))?;
    writeln!(out, "tensor data   {}", format::bytes(report.tensor_bytes))?;
    for (ty, total) in &report.types {
        writeln!(out, "  {ty:<10}  {:>5} {}", total.tensors, format::bytes(total.bytes))?;
    }
    if let Some(vocabulary) = &report.vocabulary {
        print_vocabulary(out, vocabulary)?;
    }
    print_metadata(out, header, report, whole_arrays)?;
    print_tensors(out, report)
}

/// Prints the sizes of the images and of the audio of a projector, and the numbers of their rows.
fn print_media(out: &mut dyn Write, header: &Gguf, file: &Path) -> Outcome {
    let plans = projector::encoder_plans(header, file, &LoadParams::default());
    for plan in plans.unwrap_or_default() {
        let width = plan.result_shape[0];
        if let Some(text) = projector::image_sizes(&plan) {
            writeln!(out, "image         {text} of {width} values")?;
        }
        if let Some(text) = projector::audio_lengths(&plan) {
            writeln!(out, "audio         {text} of {width} values")?;
        }
    }
    Ok(())
}

fn describe(declaration: &Declaration) -> String {
    match declaration {
        Declaration::None => "none: the file names no architecture".to_owned(),
        Declaration::Unknown => "none: unsupported architecture".to_owned(),
        Declaration::Matches => "matches: every tensor is declared and present".to_owned(),
        Declaration::NoTensors => "supported; the file has no tensors".to_owned(),
        Declaration::Partial => "supported; the other shards were not checked".to_owned(),
        Declaration::Differs(text) => text.clone(),
    }
}

fn print_vocabulary(out: &mut dyn Write, v: &Vocabulary<'_>) -> Outcome {
    write!(out, "\nvocabulary    {}", printable(v.model))?;
    if let Some(pre) = v.pre {
        write!(out, ", pre-tokenizer {}", printable(pre))?;
    }
    for (n, what) in [(v.n_tokens, "token"), (v.n_merges, "merge")] {
        if let Some(n) = n {
            write!(out, ", {}", format::plural(n, what))?;
        }
    }
    writeln!(out)?;
    for (role, token) in &v.special {
        writeln!(
            out,
            "  {role:<10}  {:>6} {}",
            token.id,
            token.text.as_deref().map_or_else(String::new, quoted)
        )?;
    }
    match v.chat_template_bytes {
        Some(n) => writeln!(out, "  chat template: {n} bytes")?,
        None => writeln!(out, "  no chat template")?,
    }
    Ok(())
}

fn print_metadata(out: &mut dyn Write, header: &Gguf, report: &Report<'_>, whole_arrays: bool) -> Outcome {
    let (own, others): (Vec<_>, Vec<_>) = header
        .metadata
        .iter()
        .partition(|(key, _)| report.hyper_parameters.contains_key(*key));
    for (title, pairs) in [("hyperparameters", own), ("other metadata", others)] {
        if pairs.is_empty() {
            continue;
        }
        writeln!(out, "\n{title}")?;
        let width = pairs
            .iter()
            .map(|(key, _)| key.len())
            .max()
            .unwrap_or(0)
            .min(MAX_KEY_WIDTH);
        for (key, value) in pairs {
            writeln!(out, "  {:<width$}  {}", printable(key), show(value, whole_arrays))?;
        }
    }
    Ok(())
}

/// Maximum width of the key column.
const MAX_KEY_WIDTH: usize = 48;
/// Maximum length of a printed string.
const MAX_TEXT: usize = 96;

fn show(value: &Value, full: bool) -> String {
    match value {
        Value::String(bytes) if !full && bytes.len() > MAX_TEXT => {
            let start = String::from_utf8_lossy(&bytes[..MAX_TEXT]);
            format!(
                "{}… ({} bytes)",
                quoted(start.trim_end_matches('\u{fffd}')),
                bytes.len()
            )
        }
        Value::String(bytes) => quoted(&String::from_utf8_lossy(bytes)),
        Value::Array(_) if full => to_json(value, true).to_string(),
        _ => value.to_string(),
    }
}

fn print_tensors(out: &mut dyn Write, report: &Report<'_>) -> Outcome {
    if report.tensors.is_empty() {
        return Ok(());
    }
    writeln!(out, "\ntensors")?;
    let width = report.tensors.iter().map(|t| t.name.chars().count()).max().unwrap_or(0);
    for t in &report.tensors {
        let (shape, size) = (format::shape(t.shape), format::bytes(t.bytes));
        writeln!(
            out,
            "  {:<width$}  {:<8} {shape:<20} {size:>12}",
            printable(t.name),
            t.ty
        )?;
    }
    Ok(())
}

fn quoted(text: &str) -> String {
    format!("{text:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_shortest_numbers_and_truncated_arrays() {
        assert_eq!(to_json(&Value::F32(1e-5), false), json!(1e-5));
        assert_eq!(to_json(&Value::F32(f32::NAN), false), serde_json::Value::Null);
        assert_eq!(to_json(&Value::U64(u64::MAX), false).to_string(), u64::MAX.to_string());
        assert_eq!(to_json(&Value::I8(-3), false).to_string(), "-3");
        let long: Value = vec![7u32; 99].into();
        assert_eq!(to_json(&long, false).to_string(), r#"{"array_of":"u32","length":99}"#);
        assert_eq!(to_json(&long, true).as_array().map(Vec::len), Some(99));
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(printable("a\u{1b}[31mb"), "a\\u001b[31mb");
        assert_eq!(show(&"\u{1b}".into(), false), "\"\\u{1b}\"");
        let text = "é".repeat(60);
        assert!(show(&text.as_str().into(), false).ends_with("… (120 bytes)"));
    }
}
