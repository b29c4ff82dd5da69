//! Tests of `llama quantize`.

use engine::gguf::GgufFile;
use kernels::GgmlType;

use crate::common::{Ended, Home, ended};
use crate::crash_safety::{Full, limited};

fn quantize(home: &Home, input: &str, output: &str, args: &[&str]) -> Ended {
    ended(home.llama(&[&["quantize", input, output][..], args].concat()))
}

/// Returns the names in a directory, without caches and settings.
fn written(home: &Home) -> Vec<String> {
    let files = std::fs::read_dir(home.path("")).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.contains("small")).collect()
}

#[test]
fn quantize_writes_a_file_that_runs() {
    let home = Home::new();
    let model = home.model("qwen3-dense", None);
    let output = home.path("small.gguf").into_os_string().into_string().unwrap();
    let result = quantize(&home, &model, &output, &["q8_0", "--tensor-type", "attn_v=f16"]);
    assert!(result.succeeds().contains("bits per weight"), "{}", result.out);
    let file = GgufFile::open(&output).unwrap();
    assert_eq!(file.require::<u32>("general.file_type").unwrap(), 7);
    assert_eq!(file.tensor("blk.0.attn_v.weight").unwrap().ty, GgmlType::F16);
    assert_eq!(file.tensor("output_norm.weight").unwrap().ty, GgmlType::F32);
    let logits = home.path("logits").into_os_string().into_string().unwrap();
    ended(home.llama(&["logits", &output, "--tokens", "1,2,3", "-o", &logits])).succeeds();
    assert_eq!(written(&home), ["small.gguf"]);
}

#[test]
fn quantize_dry_run_lists_types_and_writes_nothing() {
    let home = Home::new();
    let model = home.model("qwen3-dense", None);
    let result = quantize(&home, &model, "small.gguf", &["q4_k_m", "--dry-run", "--json"]);
    let report: serde_json::Value = serde_json::from_str(result.succeeds()).unwrap();
    assert_eq!(report["type"], "q4_k_m");
    let tensors = report["tensors"].as_array().unwrap();
    let bytes: u64 = tensors.iter().map(|tensor| tensor["bytes"].as_u64().unwrap()).sum();
    assert_eq!(report["tensor_bytes"], bytes);
    let norm = tensors
        .iter()
        .find(|tensor| tensor["name"] == "output_norm.weight")
        .unwrap();
    assert_eq!(
        (&norm["to"], &norm["wanted"]),
        (&"f32".into(), &serde_json::Value::Null)
    );
    let result = quantize(&home, &model, "small.gguf", &["q4_k_m", "--dry-run"]);
    assert!(result.succeeds().contains("output_norm.weight"), "{}", result.out);
    assert_eq!(written(&home), [""; 0]);
}

/// llama.cpp's syntax: the number of a type instead of its name, and threads at the end.
#[test]
fn quantize_accepts_number_of_type_and_threads() {
    let home = Home::new();
    let model = home.model("qwen3-dense", None);
    let write = |args: &[&str]| {
        let output = home.path("small.gguf").into_os_string().into_string().unwrap();
        quantize(&home, &model, &output, args).succeeds();
        std::fs::read(&output).unwrap()
    };
    let expected = write(&["q4_k_m", "-t", "2"]);
    assert!(write(&["15", "1"]) == expected);
    let both = quantize(&home, &model, "small.gguf", &["15", "1", "-t", "1"]);
    assert_eq!(both.status, 2, "{}", both.err);
}

#[test]
#[cfg(target_os = "linux")]
fn quantize_starts_the_given_number_of_threads() {
    let home = Home::new();
    let model = home.path("large.gguf").into_os_string().into_string().unwrap();
    let shape = ["--shape", "135m", "--set", "n_layer=6", "--type", "f16"];
    ended(home.llama(&[&["synth"], &shape[..], &["-o", &model]].concat())).succeeds();
    for n in [1, 3] {
        let threads = n.to_string();
        let mut command = home.llama(&["quantize", &model, "/dev/null", "iq3_s", "-t", &threads]);
        let mut child = command.stderr(std::process::Stdio::null()).spawn().unwrap();
        let tasks = format!("/proc/{}/task", child.id());
        let mut n_most = 0;
        while child.try_wait().unwrap().is_none() {
            n_most = n_most.max(std::fs::read_dir(&tasks).map_or(0, Iterator::count));
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        // The main thread waits for the workers.
        assert_eq!(n_most, n + 1);
    }
}

#[test]
fn quantize_warns_of_types_that_need_an_importance_matrix() {
    let home = Home::new();
    let model = home.model("qwen3-dense", None);
    let output = home.path("small.gguf").into_os_string().into_string().unwrap();
    let warning = "without an importance matrix; pass --imatrix";
    for (ty, is_warned) in [("iq2_xxs", true), ("q4_k_m", false)] {
        let result = quantize(&home, &model, &output, &[ty]);
        result.succeeds();
        assert_eq!(result.err.contains(warning), is_warned, "{}", result.err);
    }
}

#[test]
fn quantize_warns_once_of_rows_that_are_not_whole_blocks() {
    let home = Home::new();
    let model = home.model("qwen3-dense", None);
    let output = home.path("small.gguf").into_os_string().into_string().unwrap();
    let result = quantize(&home, &model, &output, &["q4_k_m", "--pure"]);
    result.succeeds();
    let warnings: Vec<&str> = result
        .err
        .lines()
        .filter(|line| line.contains("whole blocks"))
        .collect();
    let [warning] = warnings[..] else {
        panic!("{}", result.err);
    };
    assert!(
        warning.contains("2 tensors with rows of 384 elements, such as blk.0.ffn_down.weight"),
        "{warning}"
    );
    assert!(warning.contains("the rows are not whole blocks of q4_K"), "{warning}");
}

#[test]
fn quantize_override_kv_replaces_metadata_with_the_type_of_the_key() {
    let home = Home::new();
    let model = home.model("qwen3-dense", None);
    let output = home.path("small.gguf").into_os_string().into_string().unwrap();
    let keys = [
        "--override-kv",
        "qwen3.context_length=int:77",
        "--override-kv",
        "general.name=str:Mine",
    ];
    quantize(&home, &model, &output, &[&["f16"][..], &keys].concat()).succeeds();
    let file = GgufFile::open(&output).unwrap();
    assert_eq!(file.require::<u32>("qwen3.context_length").unwrap(), 77);
    assert_eq!(file.require::<&str>("general.name").unwrap(), "Mine");
}

#[test]
fn quantize_errors_give_reasons() {
    let home = Home::new();
    let model = home.model("qwen3-dense", None);
    let output = home.path("small.gguf").into_os_string().into_string().unwrap();
    quantize(&home, &model, &output, &["q8_0"]).succeeds();
    let again = home.path("small2.gguf").into_os_string().into_string().unwrap();
    let result = quantize(&home, &output, &again, &["q4_0"]);
    result.fails_saying(&["is already quantized (q8_0)", "--allow-requantize"]);
    quantize(&home, &model, &model, &["q8_0"]).fails_saying(&["is the source"]);
    let nowhere = home.path("missing/small.gguf").into_os_string().into_string().unwrap();
    quantize(&home, &model, &nowhere, &["q8_0"]).fails_saying(&["cannot write", "missing does not exist"]);
    assert_eq!(written(&home), ["small.gguf"]);
    let directory = home.path("").into_os_string().into_string().unwrap();
    quantize(&home, &model, &directory, &["q8_0"]).fails_saying(&["is a directory"]);
    let result = quantize(&home, &model, &again, &["q9_k"]);
    assert_eq!(result.status, 2);
    assert!(result.err.contains("expected one of f32, f16"), "{}", result.err);
}

#[test]
fn quantize_weights_errors_by_an_importance_matrix() {
    let home = Home::new();
    let model = home.model_with_text("gpt2", None);
    let path = |name: &str| home.path(name).into_os_string().into_string().unwrap();
    let (text, matrix, output) = (path("text.txt"), path("m.gguf"), path("small.gguf"));
    std::fs::write(&text, "The ships sail on the wide sea. ".repeat(80)).unwrap();
    ended(home.llama(&["imatrix", &model, "-f", &text, "-o", &matrix])).succeeds();
    let args = ["iq4_nl", "--imatrix", &matrix];
    let result = quantize(&home, &model, &output, &args);
    assert!(result.succeeds().contains("bits per weight"), "{}", result.out);
    let file = GgufFile::open(&output).unwrap();
    assert_eq!(file.require::<&str>("quantize.imatrix.file").unwrap(), matrix);
    assert_eq!(file.require::<u32>("quantize.imatrix.chunks_count").unwrap(), 5);
    let plain = path("small-plain.gguf");
    quantize(&home, &model, &plain, &["iq4_nl"]).succeeds();
    let plain = GgufFile::open(&plain).unwrap();
    let name = "blk.0.ffn_down.weight";
    let data = |file: &GgufFile| file.tensor_data(file.tensor(name).unwrap()).to_vec();
    assert_ne!(data(&file), data(&plain));
    let other = home.model("mamba-dense", None);
    let refused = path("small-refused.gguf");
    let result = quantize(&home, &other, &refused, &["q4_0", "--imatrix", &matrix]);
    result.fails_saying(&["belongs to another model"]);
    let result = quantize(&home, &model, &refused, &["q4_0", "--imatrix", &text]);
    result.fails_saying(&["text.txt", "not a valid importance matrix"]);
    assert!(!std::path::Path::new(&refused).exists());
}

/// Returns the path of a file in the home directory.
fn path_of(home: &Home, name: &str) -> String {
    home.path(name).into_os_string().into_string().unwrap()
}

#[test]
fn quantize_target_chooses_types_within_the_budget_and_reproduces_them() {
    let home = Home::new();
    let model = home.model_with_text("gpt2", None);
    let path = |name: &str| path_of(&home, name);
    let (text, recipe) = (path("text.txt"), path("recipe.json"));
    std::fs::write(&text, "The ships sail on the wide sea. ".repeat(80)).unwrap();
    let measured = ["-f", &text, "--chunks", "2", "--save-recipe", &recipe];
    let output = path("small.gguf");
    let result = quantize(
        &home,
        &model,
        &output,
        &[&["--target-bpw", "6"][..], &measured].concat(),
    );
    let expected = "expected KL divergence: ";
    assert!(result.succeeds().contains(expected), "{}", result.out);
    let file = GgufFile::open(&output).unwrap();
    let bytes: usize = file.tensors().iter().map(|tensor| tensor.bytes).sum();
    let n_weights: usize = file.tensors().iter().map(|tensor| tensor.n_elements()).sum();
    assert!(bytes * 8 <= 6 * n_weights, "{bytes} bytes of {n_weights} weights");
    // The types use most of the budget.
    assert!(bytes * 8 > 5 * n_weights, "{bytes} bytes of {n_weights} weights");
    let digest = file
        .require::<&str>("quantize.recipe.source_sha256")
        .unwrap()
        .to_owned();
    let hash = ended(home.llama(&["gguf", "hash", &model]));
    assert!(hash.succeeds().contains(&digest), "{digest} {}", hash.out);

    let again = path("small-again.gguf");
    quantize(&home, &model, &again, &[&["--target-bpw", "6"][..], &measured].concat()).succeeds();
    let reused = path("small-reused.gguf");
    quantize(&home, &model, &reused, &["--recipe", &recipe]).succeeds();
    let [first, second, third] = [&output, &again, &reused].map(|path| std::fs::read(path).unwrap());
    assert!(first == second && first == third);
    let of_file = path("small-of-file.gguf");
    quantize(&home, &model, &of_file, &["--recipe", &output]).succeeds();
    let copied = GgufFile::open(&of_file).unwrap();
    let types = |file: &GgufFile| file.tensors().iter().map(|tensor| tensor.ty).collect::<Vec<_>>();
    assert_eq!(types(&copied), types(&file));

    let size = first.len() + 40_000;
    let sized = path("small-sized.gguf");
    let target = size.to_string();
    quantize(&home, &model, &sized, &["--recipe", &recipe, "--target-size", &target]).succeeds();
    let len = std::fs::metadata(&sized).unwrap().len() as usize;
    assert!(len <= size && len > first.len(), "{len} of {size}");
}

#[test]
fn quantize_target_reports_invalid_arguments() {
    let home = Home::new();
    let model = home.model_with_text("gpt2", None);
    let path = |name: &str| path_of(&home, name);
    let (output, text, recipe) = (path("small.gguf"), path("text.txt"), path("recipe.json"));
    let run = |args: &[&str]| quantize(&home, &model, &output, args);
    run(&["--target-bpw", "6"]).fails_saying(&["needs a text to measure with (-f)"]);
    std::fs::write(&text, "The ships sail.").unwrap();
    run(&["--target-bpw", "6", "-f", &text]).fails_saying(&["shorter than one chunk"]);
    std::fs::write(&text, "The ships sail on the wide sea. ".repeat(80)).unwrap();
    let args = [
        "--target-bpw",
        "1.5",
        "-f",
        &text,
        "--chunks",
        "1",
        "--measured-layers",
        "1",
    ];
    run(&args).fails_saying(&["the smallest types need", "bits per weight"]);
    std::fs::write(&recipe, "{}").unwrap();
    run(&["--recipe", &recipe]).fails_saying(&["recipe.json", "not a valid recipe"]);
    run(&["--recipe", &model, "--target-bpw", "6"]).fails_saying(&["no costs"]);
    let other = home.model("mamba-dense", None);
    run(&["--recipe", &other]).fails_saying(&["belongs to another model"]);
    assert_eq!(run(&["q4_0", "--target-bpw", "6"]).status, 2);
    assert_eq!(run(&[]).status, 2);
    assert_eq!(written(&home), [""; 0]);
}

#[test]
fn quantize_measure_prints_the_divergence_from_the_source() {
    let home = Home::new();
    let model = home.model_with_text("gpt2", None);
    let (output, text) = (path_of(&home, "small.gguf"), path_of(&home, "text.txt"));
    std::fs::write(&text, "The ships sail on the wide sea. ".repeat(80)).unwrap();
    let result = quantize(&home, &model, &output, &["q8_0", "--measure", &text, "--json"]);
    let report: serde_json::Value = serde_json::from_str(result.succeeds()).unwrap();
    let args = ["perplexity", &output, "--against", &model, "-f", &text, "--json"];
    let expected = ended(home.llama(&args));
    let mut expected: serde_json::Value = serde_json::from_str(expected.succeeds()).unwrap();
    for key in ["n_ctx", "chunks"] {
        expected.as_object_mut().unwrap().remove(key);
    }
    assert_eq!(report["measured"], expected);
    assert!(report["measured"]["kld"]["value"].as_f64().unwrap() > 0.0);
    let result = quantize(&home, &model, &output, &["q8_0", "--measure", &text]);
    assert!(result.succeeds().contains("KL divergence: mean 0.0"), "{}", result.out);
}

#[test]
fn quantize_keeps_the_files_of_a_split_source() {
    let home = Home::new();
    let model = home.model("qwen3-dense", None);
    let (parts, output) = (path_of(&home, "parts"), path_of(&home, "small.gguf"));
    ended(home.llama(&["gguf", "split", &model, &parts, "--max-tensors", "9"])).succeeds();
    let first = std::fs::read_dir(home.path(""))
        .unwrap()
        .map(|file| file.unwrap().path().into_os_string().into_string().unwrap())
        .find(|name| name.contains("parts-00001-of"))
        .unwrap();
    quantize(&home, &first, &output, &["q8_0", "--keep-split", "--resume"]).succeeds();
    let small = first.replace("parts-", "small-");
    let set = engine::gguf::GgufSet::open(&small).unwrap();
    assert!(set.shards().len() > 1);
    quantize(&home, &model, &output, &["q8_0"]).succeeds();
    let whole = engine::gguf::GgufSet::open(&output).unwrap();
    assert_eq!(set.n_tensors(), whole.n_tensors());
    for (_, tensor) in set.tensors() {
        assert_eq!(whole.tensor_data(&tensor.name), set.tensor_data(&tensor.name));
    }
    let partial = std::fs::read_dir(home.path("")).unwrap();
    assert!(
        !partial
            .flatten()
            .any(|file| file.file_name().to_string_lossy().contains(".partial"))
    );
}

#[test]
fn quantize_resume_continues_after_whole_tensors() {
    let home = Home::new();
    let model = home.model("qwen3-dense", None);
    let (whole, output) = (path_of(&home, "small-whole.gguf"), path_of(&home, "small.gguf"));
    quantize(&home, &model, &whole, &["q8_0"]).succeeds();
    let mut expected = std::fs::read(&whole).unwrap();
    let command = home.llama(&["quantize", &model, &output, "q8_0", "--resume"]);
    ended(limited(command, expected.len() as u64 / 2, Full::Fails)).fails_saying(&["cannot write"]);
    let names = std::fs::read_dir(home.path("")).unwrap();
    let partial = names
        .flatten()
        .find(|file| file.file_name().to_string_lossy().ends_with(".partial"));
    let partial = partial.unwrap().path();
    assert!(expected.starts_with(&std::fs::read(&partial).unwrap()));
    // The changed first tensor is kept. The truncated last tensor is written again.
    let file = GgufFile::open(&whole).unwrap();
    let start = file.tensor_offset(&file.tensors()[0]);
    expected[start] ^= 1;
    std::fs::write(&partial, &expected[..expected.len() - 5]).unwrap();
    quantize(&home, &model, &output, &["q8_0", "--resume"]).succeeds();
    assert!(std::fs::read(&output).unwrap() == expected);
    assert!(!partial.exists());
    // Other types do not continue the same incomplete file.
    quantize(&home, &model, &output, &["q4_0", "--resume"]).succeeds();
    assert_eq!(
        GgufFile::open(&output)
            .unwrap()
            .require::<u32>("general.file_type")
            .unwrap(),
        2
    );
}

#[test]
fn quantize_target_size_includes_the_headers_of_all_parts() {
    let home = Home::new();
    let model = home.model_with_text("gpt2", None);
    let path = |name: &str| path_of(&home, name);
    let (parts, output, text, recipe) = (path("parts"), path("small.gguf"), path("text.txt"), path("recipe.json"));
    std::fs::write(&text, "The ships sail on the wide sea. ".repeat(80)).unwrap();
    ended(home.llama(&["gguf", "split", &model, &parts, "--max-tensors", "3"])).succeeds();
    let files = || std::fs::read_dir(home.path("")).unwrap().flatten();
    let mut names = files().map(|file| file.path().into_os_string().into_string().unwrap());
    let first = names.find(|name| name.contains("parts-00001-of")).unwrap();
    let measured = [
        "-f",
        &text,
        "--chunks",
        "1",
        "--measured-layers",
        "1",
        "--save-recipe",
        &recipe,
    ];
    let args = [&["--target-bpw", "6", "--keep-split"][..], &measured].concat();
    quantize(&home, &first, &output, &args).succeeds();
    let size = || -> u64 {
        let parts = files().filter(|file| file.file_name().to_string_lossy().starts_with("small-"));
        parts.map(|file| file.metadata().unwrap().len()).sum()
    };
    let target = size() + 5000;
    let args = [
        "--target-size",
        &target.to_string(),
        "--recipe",
        &recipe,
        "--keep-split",
    ];
    quantize(&home, &first, &output, &args).succeeds();
    assert!(size() <= target, "{} of {target}", size());
}

#[test]
fn quantize_resume_rejects_file_locked_by_another_process() {
    let home = Home::new();
    let model = home.model("qwen3-dense", None);
    let output = path_of(&home, "small.gguf");
    let command = home.llama(&["quantize", &model, &output, "q8_0", "--resume"]);
    ended(limited(command, 1 << 16, Full::Fails)).fails_saying(&["cannot write"]);
    let mut names = std::fs::read_dir(home.path("")).unwrap().flatten();
    let partial = names.find(|file| file.file_name().to_string_lossy().ends_with(".partial"));
    let file = std::fs::File::open(partial.unwrap().path()).unwrap();
    file.lock().unwrap();
    let result = quantize(&home, &model, &output, &["q8_0", "--resume"]);
    result.fails_saying(&["another process writes", "small.gguf"]);
    file.unlock().unwrap();
    quantize(&home, &model, &output, &["q8_0", "--resume"]).succeeds();
}

#[test]
fn quantize_prunes_layers_of_a_model_that_still_runs() {
    let home = Home::new();
    let model = home.model("qwen3-dense", None);
    let output = path_of(&home, "small.gguf");
    quantize(&home, &model, &output, &["q8_0", "--prune-layers", "0"]).succeeds();
    let [old, new] = [&model, &output].map(|path| GgufFile::open(path).unwrap());
    let layers = |file: &GgufFile| file.require::<u32>("qwen3.block_count").unwrap();
    assert_eq!(layers(&new) + 1, layers(&old));
    let logits = path_of(&home, "logits");
    ended(home.llama(&["logits", &output, "--tokens", "1,2,3", "-o", &logits])).succeeds();
    quantize(&home, &model, &output, &["q8_0", "--prune-layers", "99"]).fails_saying(&["there is no layer 99"]);
}

#[test]
fn quantize_calibrate_lowers_the_divergence() {
    let home = Home::new();
    let model = home.model_with_text("gpt2", None);
    let path = |name: &str| path_of(&home, name);
    let text = path("text.txt");
    std::fs::write(&text, "The ships sail on the wide sea. ".repeat(80)).unwrap();
    let run = |name: &str, args: &[&str]| {
        let output = path(name);
        let fixed = ["q4_0", "--pure", "--measure", &text, "--json"];
        let result = quantize(&home, &model, &output, &[&fixed[..], args].concat());
        let report: serde_json::Value = serde_json::from_str(result.succeeds()).unwrap();
        report["measured"]["kld"]["value"].as_f64().unwrap()
    };
    let calibrated = ["--calibrate", &text, "--calibrate-chunks", "2"];
    let plain = run("small-plain.gguf", &[]);
    let found = run("small.gguf", &calibrated);
    assert!(found < 0.9 * plain, "{found} {plain}");
    let again = [&calibrated[..], &["-t", "1", "--resume"]].concat();
    assert_eq!(run("small-again.gguf", &again), found);
    let [first, second] = ["small.gguf", "small-again.gguf"].map(|name| std::fs::read(path(name)).unwrap());
    assert!(first == second);
    let file = GgufFile::open(path("small.gguf")).unwrap();
    assert_eq!(file.require::<u64>("quantize.calibration.chunks").unwrap(), 2);
    let digest = file.require::<&str>("quantize.calibration.text_sha256").unwrap();
    assert_eq!(digest.len(), 64);

    std::fs::write(&text, "The ships").unwrap();
    let result = quantize(&home, &model, &path("small-none.gguf"), &["q4_0", "--calibrate", &text]);
    result.fails_saying(&["shorter than one chunk", "of 512 tokens"]);
    assert!(!std::path::Path::new(&path("small-none.gguf")).exists());
}
