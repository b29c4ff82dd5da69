//! `llama arch check FILE`: describes a model file, runs self-checks, and compares its logits with a
//! recording.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::slice::from_ref;

use engine::conformance::{CheckError, CheckParams, Draft, Finding, Fixture, KEY_GELU, Outcome as Found, self_check};
use engine::gguf::{Gguf, GgufFile};
use engine::graph::Window;
use engine::model::{LoadParams, Model, Registered};
use llama::parts;

use crate::commands::stdout;
use crate::failure::{Failure, Outcome};
use crate::{checkpoints, format};

/// Checks a model file, the directory of a checkpoint, or the header of a seeded model. Fails if a self-check fails or
/// the logits differ from the recording.
#[allow(clippy::result_large_err, reason = "CheckError is only returned once per file")]
pub fn run(path: &Path, params: &CheckParams, limit: f64) -> Outcome {
    let mut params = params.clone();
    if params.load.arch.is_none() {
        params.load.archs.extend(checkpoints::declaration_of(path)?);
    }
    check(path, &|load| load_model(path, params.seed, load), &params, limit)
}

/// Checks the test model of each declaration in `params`, with seeded weights.
pub fn run_test_models(params: &CheckParams, limit: f64) -> Outcome {
    let mut outcome = Ok(());
    for declared in &params.load.archs {
        match run_test_model(declared, params, limit) {
            Err(Failure::Reported) => outcome = Err(Failure::Reported),
            other => other?,
        }
    }
    outcome
}

fn run_test_model(declared: &Registered, params: &CheckParams, limit: f64) -> Outcome {
    let mut draft = Draft::of_declaration(declared.arch, from_ref(declared), true)?;
    // Published implementations compute the exact GELU instead of an f16 table.
    draft.metadata.insert(KEY_GELU, "exact");
    let bytes = draft.seeded(params.seed)?;
    let path = PathBuf::from(format!("{}.gguf", declared.arch.name));
    #[expect(clippy::result_large_err, reason = "the type that the check expects")]
    let load = |load: &LoadParams| -> Result<Model, CheckError> {
        Ok(Model::from_file(
            GgufFile::from_bytes(&path, &bytes)?,
            archs::ALL,
            load,
        )?)
    };
    check(&path, &load, params, limit)
}

fn check(
    path: &Path,
    load: &dyn Fn(&LoadParams) -> Result<Model, CheckError>,
    params: &CheckParams,
    limit: f64,
) -> Outcome {
    let model = load(&params.load)?;
    let mut out = stdout();
    describe(&mut out, path, &model)?;
    out.flush()?;
    let findings = self_check(load, params, limit)?;
    writeln!(out, "\nself-check with 40 tokens, NMSE at most {limit:.0e}")?;
    let width = findings.iter().map(|f| f.claim.len()).max().unwrap_or(0);
    for f in &findings {
        writeln!(out, "  {:<width$}  {}", f.claim, verdict(f))?;
    }
    let compared = compare(&mut out, path, model, params, limit)?;
    out.flush()?;
    if compared && findings.iter().all(Finding::passes) {
        Ok(())
    } else {
        Err(Failure::Reported)
    }
}

/// Loads a model file or a checkpoint, or builds the model of a header with seeded weights.
#[allow(clippy::result_large_err, reason = "CheckError is only returned once per file")]
fn load_model(path: &Path, seed: u64, params: &LoadParams) -> Result<Model, CheckError> {
    if !is_header(path) {
        return Ok(parts::load_model(path, params)?);
    }
    let bytes = Draft::of(&Gguf::open_header(path)?).seeded(seed)?;
    Ok(Model::from_file(
        GgufFile::from_bytes(path, &bytes)?,
        archs::ALL,
        params,
    )?)
}

fn is_header(path: &Path) -> bool {
    path.to_string_lossy().ends_with(".header.gguf")
}

/// Returns the path of the recorded logits: `NAME.logits` next to `NAME.gguf` or `NAME.header.gguf`, and `logits` in
/// the directory of a checkpoint.
fn recording(path: &Path) -> PathBuf {
    if path.is_dir() {
        return path.join("logits");
    }
    let text = path.to_string_lossy();
    let name = text.strip_suffix(".header.gguf").or(text.strip_suffix(".gguf"));
    PathBuf::from(format!("{}.logits", name.unwrap_or(&text)))
}

/// Prints the model's dimensions and memory use.
fn describe(out: &mut dyn Write, path: &Path, model: &Model) -> Outcome {
    let (arch, base) = (model.arch(), model.base());
    writeln!(
        out,
        "{}: architecture {}, {}, {} parameters, {}",
        path.display(),
        arch.name,
        format::plural(model.tensors().len(), "tensor"),
        format::count(model.n_params()),
        format::bytes(model.n_bytes())
    )?;
    let by_layer = |n: &dyn Fn(usize) -> usize| {
        let mut values: Vec<usize> = (0..base.n_layer()).map(n).collect();
        values.dedup();
        values.iter().map(ToString::to_string).collect::<Vec<_>>().join("/")
    };
    let mut sizes = vec![
        ("n_vocab", base.n_vocab().to_string()),
        ("n_embd", base.n_embd().to_string()),
        ("n_layer", base.n_layer().to_string()),
        ("n_head", by_layer(&|il| base.n_head(il))),
        ("n_head_kv", by_layer(&|il| base.n_head_kv(il))),
        ("head_dim", base.head_dim().to_string()),
        ("n_ff", by_layer(&|il| base.n_ff(il))),
    ];
    if base.n_expert() > 0 {
        sizes.push(("n_expert", base.n_expert().to_string()));
        sizes.push(("n_expert_used", by_layer(&|il| base.n_expert_used(il))));
    }
    let sizes: Vec<String> = sizes.iter().map(|(name, n)| format!("{name} {n}")).collect();
    writeln!(out, "sizes   {}", sizes.join(", "))?;
    for line in memory(model) {
        writeln!(out, "memory  {line}")?;
    }
    let result = if arch.projects { "n_vocab, T" } else { "n_embd, T" };
    Ok(writeln!(out, "result  [{result}]")?)
}

/// Describes the memory per token and per sequence of a context.
fn memory(model: &Model) -> Vec<String> {
    let specs = model.memory_specs();
    let mut windows: Vec<(Window, usize, usize)> = Vec::new();
    for kv in &specs.kv {
        let elements = kv.k_row + kv.v_row;
        match windows.iter_mut().find(|(w, ..)| *w == kv.window) {
            Some((_, layers, sum)) => (*layers, *sum) = (*layers + 1, *sum + elements),
            None => windows.push((kv.window, 1, elements)),
        }
    }
    let mut lines: Vec<String> = (windows.iter())
        .map(|(window, layers, elements)| {
            let scope = match window {
                Window::None => String::new(),
                Window::Sliding(n) | Window::Symmetric(n) => format!(", window of {n} tokens"),
                Window::Chunked(n) => format!(", chunks of {n} tokens"),
                Window::Compressed(n) => format!(", one per {n} tokens"),
            };
            let layers = format::plural(*layers, "layer");
            format!("{elements} KV elements per token in {layers}{scope}")
        })
        .collect();
    if !specs.states.is_empty() {
        let bytes: usize = specs.states.iter().map(|s| s.row * size_of::<f32>()).sum();
        lines.push(format!("{} of recurrent state per sequence", format::bytes(bytes)));
    }
    lines
}

fn verdict(finding: &Finding) -> String {
    match &finding.outcome {
        Found::Holds => "ok".to_owned(),
        Found::Agrees(nmse) => format!("ok    {nmse:.2e}"),
        Found::Differs(nmse) => format!("FAIL  {nmse:.2e}"),
        Found::Fails(how) => format!("FAIL  {how}"),
        Found::NotApplicable(why) => format!("-     {why}"),
    }
}

/// Compares the logits with the recording and returns whether they match; true without a recording.
fn compare(out: &mut dyn Write, path: &Path, model: Model, params: &CheckParams, limit: f64) -> Outcome<bool> {
    let logits = recording(path);
    if !logits.exists() {
        writeln!(
            out,
            "\nnot checked against the published implementation: no recording {}",
            logits.display()
        )?;
        writeln!(out, "see docs/architecture-language.md for how to record one:")?;
        let file = if is_header(path) || path.is_dir() {
            "MODEL.gguf".into()
        } else {
            path.display().to_string()
        };
        let mapped = if model.arch().checkpoints.is_empty() {
            ""
        } else if archs::find(model.arch().name).is_some() {
            " --llama llama"
        } else {
            " --llama llama --arch FILE.rs"
        };
        writeln!(out, "  python3 tests/tools/record_transformers.py {file} TYPE{mapped}")?;
        return Ok(true);
    }
    let fixture = Fixture {
        name: String::new(),
        header: path.to_owned(),
        logits: logits.clone(),
    };
    let nmse = fixture.nmse_of(model, &params.context)?;
    let verdict = if nmse <= limit { "ok" } else { "FAIL" };
    writeln!(out, "\nrecorded logits in {}: {verdict}  {nmse:.2e}", logits.display())?;
    Ok(nmse <= limit)
}
