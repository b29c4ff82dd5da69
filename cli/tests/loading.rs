//! Tests of loading options in `run`, `logits`, `inspect`, and `arch check`: placement, memory mapping, overrides, and
//! adapters.

use std::path::PathBuf;

use crate::common::{Ended, Home, ended, fixtures, root};
use engine::gguf::logits::{Logits, nmse};
use engine::gguf::{Gguf, GgufFile, GgufWriter, split};
use kernels::GgmlType;

const TOKENS: &str = "1,2,3,4,5,6,7,8";

fn text(path: PathBuf) -> String {
    path.into_os_string().into_string().expect("a UTF-8 path")
}

/// Runs `llama logits` with an f32 cache. The logits are written to `out.logits` in the home directory.
fn logits(home: &Home, model: &str, args: &[&str]) -> Ended {
    let out = text(home.path("out.logits"));
    let fixed = [
        "logits", "-m", model, "-o", &out, "--tokens", TOKENS, "--ctk", "f32", "--ctv", "f32",
    ];
    ended(home.llama(&[&fixed[..], args].concat()))
}

#[track_caller]
fn values(home: &Home, model: &str, args: &[&str]) -> Vec<f32> {
    let result = logits(home, model, args);
    result.succeeds();
    Logits::read(home.path("out.logits")).unwrap().values().to_vec()
}

/// Returns the plan of a 28-layer model, from its header, without repacking.
fn plan(args: &[&str]) -> Ended {
    best_plan(&[&["--no-repack"], args].concat())
}

/// Returns the plan with default options.
fn best_plan(args: &[&str]) -> Ended {
    let header = text(root().join("tests/data/headers/qwen3-1.7b-q4_k_m.header.gguf"));
    ended(Home::new().llama(&[&["inspect", &header, "--plan"], args].concat()))
}

#[test]
fn plan_prints_layers_and_bytes() {
    let words = |args: &[&str]| -> Vec<String> {
        let result = plan(args);
        result.succeeds().split_whitespace().map(str::to_owned).collect()
    };
    let line = |args: &[&str]| words(args).join(" ");
    let all = "29/29 layers on devices reference 1050.43 MiB CPU 166.92 MiB";
    let begins = |args: &[&str], with: &str| {
        let line = line(args);
        assert!(line.starts_with(with), "{args:?}: {line}");
    };
    begins(&["--device", "reference", "-ngl", "99"], all);
    begins(&["-dev", "cpu,reference", "-ngl", "all"], all);
    begins(&["-dev", "reference", "-sm", "none", "-ts", "1"], all);
    begins(&["-dev", "reference"], all);
    begins(&["-dev", "reference", "-nkvo"], all);
    let none = "0/29 layers on devices CPU 1217.35 MiB";
    begins(&[], none);
    begins(&["--device", "cpu"], none);
    begins(
        &["--device", "reference", "-ngl", "1"],
        "1/29 layers on devices reference 243.44 MiB CPU 973.92 MiB",
    );
    // 644 MiB are available after the margin. The output takes 243.44 MiB, a layer 27 to 30 MiB, its cache of
    // 4096 tokens 16 MiB, and the compute buffers 36.02 MiB.
    for args in [
        &["--device", "cpu,reference:900"][..],
        &["--device", "reference:900", "-ngl", "auto"],
    ] {
        assert!(line(args).starts_with("8/29 layers on devices reference 450.60 MiB"));
    }
    assert!(
        line(&["--device", "cpu,reference:900", "-nkvo"]).starts_with("13/29 layers on devices reference 592.90 MiB")
    );
    assert!(line(&["--device", "cpu,reference:100"]).starts_with("0/29 layers"));
}

/// The model has 28 layers with 8 KV heads of 128 elements; 28 or 9 layers are on the device.
#[test]
fn plan_prints_kv_cache() {
    let kv = |n_layers: usize, n_ctx: usize, bytes: f64| (n_layers * n_ctx * 2 * 8 * 128) as f64 * bytes / 1048576.0;
    let says = |args: &[&str], tokens: &str, lines: &[(&str, f64)]| {
        let plan = plan(args);
        let (_, cache) = plan
            .succeeds()
            .split_once("KV cache for ")
            .expect("the plan contains a cache");
        assert!(cache.starts_with(tokens), "{cache}");
        for (memory, mib) in lines {
            let has = |line: &str| {
                line.split_whitespace()
                    .eq([memory, format!("{mib:.2}").as_str(), "MiB"])
            };
            assert!(cache.lines().any(has), "{args:?}: {memory} {mib:.2} in {cache}");
        }
    };
    says(&[], "4096 tokens", &[("CPU", kv(28, 4096, 2.0))]);
    says(
        &["-dev", "reference"],
        "4096 tokens",
        &[("reference", kv(28, 4096, 2.0))],
    );
    says(
        &["-dev", "reference", "-nkvo"],
        "4096 tokens",
        &[("CPU", kv(28, 4096, 2.0))],
    );
    says(
        &["-c", "512", "-ctk", "q8_0", "-ctv", "q8_0"],
        "512 tokens",
        &[("CPU", kv(28, 512, 34.0 / 32.0))],
    );
    let divided = [("CPU", kv(20, 4096, 2.0)), ("reference", kv(8, 4096, 2.0))];
    says(&["-dev", "reference", "-ngl", "9"], "4096 tokens", &divided);
    let little = plan(&["-dev", "reference:900", "-ngl", "auto"]);
    assert!(little.succeeds().contains(" MiB needed, "), "{}", little.out);
    assert!(
        little.out.contains("9 layers on reference would need"),
        "{}",
        little.out
    );
    let none = plan(&["-dev", "reference:300"]);
    let why = "1 layer on reference would need 244.02 MiB of 300.00 MiB free memory, but 256.00 MiB must stay free";
    assert!(none.succeeds().contains(why), "{}", none.out);
    let absurd = plan(&["-c", "9000000000000000000"]);
    assert!(absurd.succeeds().contains("insufficient"), "{}", absurd.out);
}

/// With ubatches of 512 tokens and a context of 4096, the device needs several rows of 2048 and 6144 floats
/// at a time.
#[test]
fn plan_prints_compute_buffers() {
    let buffers = |args: &[&str]| -> Vec<(String, u64)> {
        let result = plan(&[&["--json"], args].concat());
        let json: serde_json::Value = serde_json::from_str(result.succeeds()).unwrap();
        let all = json["compute"].as_array().unwrap().clone();
        let pair = |m: &serde_json::Value| (m["name"].as_str().unwrap().to_owned(), m["bytes"].as_u64().unwrap());
        all.iter().map(pair).collect()
    };
    let of = |args: &[&str]| buffers(args).iter().map(|(_, bytes)| bytes).sum::<u64>();
    let row = 4 * 512 * 6144;
    assert!((row..8 * row).contains(&of(&[])), "{}", of(&[]));
    let names: Vec<String> = buffers(&["-dev", "reference", "-ngl", "9"])
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert_eq!(names, ["reference", "CPU"]);
    assert!(of(&["-ub", "64"]) < of(&[]) / 4 && of(&["-np", "64"]) > of(&[]));
    let text = plan(&["-ub", "64", "-b", "64"]);
    assert!(text.succeeds().contains("compute buffers\nCPU"), "{}", text.out);
}

/// A layer of this Mamba 2 model stores 3 tokens of 1024 convolution channels, and 128 numbers for each of
/// 512 scan channels.
#[test]
fn plan_prints_recurrent_states() {
    let header = text(root().join("tests/data/archs/mamba2-dense.header.gguf"));
    let inspect = |args: &[&str]| ended(Home::new().llama(&[&["inspect", &header, "--plan"], args].concat()));
    let bytes = 2 * 4 * (3 * 1024 + 128 * 512);
    let line = format!(
        "recurrent state (two per sequence): {:.2} MiB",
        f64::from(bytes) / 1048576.0
    );
    let (text, json) = (inspect(&[]), inspect(&["--json"]));
    assert!(text.succeeds().contains(&line), "{line}");
    let json: serde_json::Value = serde_json::from_str(json.succeeds()).unwrap();
    assert_eq!(json["state_bytes"], bytes);
}

#[test]
fn plan_prints_each_tensor() {
    let result = plan(&[
        "--plan-tensors",
        "-dev",
        "reference",
        "-ot",
        "blk\\.3\\.ffn_.*=cpu",
        "-ot",
        "ffn=reference",
    ]);
    let memory = |name: &str| {
        let line = result
            .succeeds()
            .lines()
            .find(|l| l.split_whitespace().next() == Some(name));
        line.unwrap_or_else(|| panic!("{name} in {}", result.out))
            .split_whitespace()
            .nth(1)
            .unwrap()
    };
    assert_eq!(memory("blk.3.ffn_up.weight"), "CPU");
    assert_eq!(memory("blk.4.ffn_up.weight"), "reference");
    assert_eq!(memory("blk.3.attn_q.weight"), "reference");
    assert_eq!(memory("token_embd.weight"), "CPU");
    let json = plan(&["--plan-tensors", "--json", "-dev", "reference"]);
    let report: serde_json::Value = serde_json::from_str(json.succeeds()).unwrap();
    let bytes = |rows: &serde_json::Value| -> u64 {
        rows.as_array()
            .unwrap()
            .iter()
            .map(|row| row["bytes"].as_u64().unwrap())
            .sum()
    };
    assert_eq!((&report["device_layers"], &report["layers"]), (&29.into(), &29.into()));
    assert_eq!(bytes(&report["tensors"]), bytes(&report["memory"]));
}

/// Matmul weights are repacked; token embeddings are read from the mapped file.
#[test]
fn plan_counts_repacked_weights() {
    let tensors = |plan: Ended| -> Vec<(String, String, u64)> {
        let report: serde_json::Value = serde_json::from_str(plan.succeeds()).unwrap();
        let rows = report["tensors"].as_array().unwrap().iter();
        let text = |row: &serde_json::Value, key: &str| row[key].as_str().unwrap().to_owned();
        let all: Vec<_> = rows
            .map(|row| (text(row, "name"), text(row, "layout"), row["bytes"].as_u64().unwrap()))
            .collect();
        let sum: u64 = all.iter().map(|(_, _, bytes)| bytes).sum();
        assert_eq!(report["memory"][0]["bytes"].as_u64().unwrap(), sum);
        all
    };
    let json = ["--plan-tensors", "--json"];
    let (as_in_file, repacked) = (tensors(plan(&json)), tensors(best_plan(&json)));
    assert!(as_in_file.iter().all(|(_, layout, _)| layout == "plain"));
    let layouts = |name: &str| -> Vec<&str> {
        let rows = repacked.iter().filter(|(n, _, _)| n == name);
        rows.map(|(_, layout, _)| layout.as_str()).collect()
    };
    assert_eq!(layouts("blk.3.ffn_up.weight"), ["rows_x8"]);
    assert_eq!(layouts("blk.3.attn_norm.weight"), ["plain"]);
    assert_eq!(layouts("token_embd.weight"), ["plain"]);
    assert_eq!(layouts("output.weight"), ["rows_x8"]);
}

#[test]
fn invalid_placement_is_rejected() {
    let fails = |args: &[&str], parts: &[&str]| plan(args).fails_saying(parts);
    fails(&["-dev", "no-such"], &["unknown device `no-such`", "cpu, reference"]);
    fails(&["-dev", "reference,reference"], &["duplicate device `reference`"]);
    fails(
        &["-dev", "reference:many"],
        &["expected a number of MiB, found \"many\""],
    );
    fails(&["-dev", "reference", "-ts", "1,1"], &["tensor_split"]);
    fails(&["-dev", "reference", "-ts", "0"], &["tensor_split"]);
    fails(&["-dev", "reference", "-sm", "none", "-mg", "3"], &["main_device", "3"]);
    fails(&["-ot", "nothing=VRAM"], &["unknown buffer type `VRAM`", "CPU"]);
    fails(&["--arch", "no-such"], &["no-such"]);
    for usage in [
        ["-ngl", "some"],
        ["-ngl", "-3"],
        ["-ts", "1,x"],
        ["-ts", "-1"],
        ["-sm", "diagonal"],
        ["-mg", "first"],
        ["-dev", "cpu,,reference"],
        ["-ot", "a(=CPU"],
        ["-ot", "abc"],
        ["--override-kv", "a=3"],
        ["--override-kv", "a=int:x"],
    ] {
        let result = plan(&usage);
        assert_eq!(
            (result.status, result.out.as_str()),
            (2, ""),
            "{usage:?}: {}",
            result.err
        );
    }
}

#[test]
fn arch_check_passes_with_every_load_mode() {
    let dir = text(fixtures());
    for args in [
        &["--device", "cpu,reference", "-ngl", "2"][..],
        &["--device", "reference", "-nkvo"],
        &["--device", "reference", "-ot", "ffn=CPU"],
        &["--no-mmap"],
        &["--shards", "3"],
        &["--shards", "3", "--no-mmap", "--device", "cpu,reference", "-ngl", "1"],
        &["--check-tensors"],
        &["--device", "cpu,reference", "-ngl", "all", "-sm", "row", "-ts", "1,1"],
    ] {
        let result = ended(Home::new().llama(&[&["arch", "check", "--known", "--fixtures", &dir], args].concat()));
        assert_eq!(result.status, 0, "{args:?}: {}{}", result.out, result.err);
        assert!(result.out.trim_end().ends_with(" 0 failed"), "{args:?}: {}", result.out);
    }
    let result = ended(Home::new().llama(&["arch", "check", "--fixtures", &dir, "-dev", "no-such"]));
    result.fails_saying(&["no-such"]);
}

#[test]
fn logits_are_equal_for_every_load_mode() {
    let home = Home::new();
    let model = home.model("llama-moe", None);
    let whole = values(&home, &model, &[]);
    for args in [
        &["--no-mmap"][..],
        &["--no-repack"],
        &["--precision", "exact"],
        &["--check-tensors"],
        &["--device", "cpu"],
        &["-ngl", "7"],
    ] {
        assert_eq!(values(&home, &model, args), whole, "{args:?}");
    }
    let split = ["--device", "cpu,reference", "-ngl", "2"];
    let halves = values(&home, &model, &split);
    assert_eq!(values(&home, &model, &split), halves, "results are reproducible");
    assert_ne!(halves, whole, "the reference device rounds differently");
    assert!(nmse(&whole, &halves) < 1e-6);
    let rows = values(
        &home,
        &model,
        &["--device", "cpu,reference", "-ngl", "all", "-sm", "row", "-ts", "2,1"],
    );
    assert!(nmse(&whole, &rows) < 1e-6 && rows != halves);
    let warned = logits(&home, &model, &["-ngl", "7"]);
    assert_eq!(
        warned.err,
        "warning: no GPU available, so -ngl has no effect; see `llama devices`\n"
    );
    let locked = logits(&home, &model, &["--mlock"]);
    locked.succeeds();
    // The lock limit of the test machine may be too low.
    assert!(locked.err.is_empty() || locked.err.starts_with("warning: ") && locked.err.contains("cannot lock "));
}

/// Writes a model as three shards and returns their names.
fn split_into_three_files(home: &Home, model: &str) -> Vec<String> {
    let file = GgufFile::open(model).unwrap();
    let n = file.tensors().len();
    let part = |no: u16| split::part_path(&home.path("split"), no, 3);
    for no in 0..3 {
        let mut writer = GgufWriter::new();
        if no == 0 {
            writer.metadata = file.metadata().clone();
        }
        writer.set(split::KEY_NO, no).set(split::KEY_COUNT, 3u16);
        writer.set(split::KEY_TENSORS_COUNT, n as i32);
        for t in &file.tensors()[n * usize::from(no) / 3..n * usize::from(no + 1) / 3] {
            writer
                .add_tensor(t.name.as_str(), t.ty, t.shape(), file.tensor_data(t))
                .unwrap();
        }
        writer.write_file(part(no)).unwrap();
    }
    (0..3).map(|no| text(part(no))).collect()
}

#[test]
fn sharded_model_equals_single_file() {
    let home = Home::new();
    let model = home.model("gemma3-dense", None);
    let parts = split_into_three_files(&home, &model);
    let whole = values(&home, &model, &[]);
    assert_eq!(values(&home, &parts[0], &[]), whole);
    assert_eq!(values(&home, &parts[0], &["--no-mmap"]), whole);
    let of = |model: &str| ended(home.llama(&["inspect", "--plan", "-dev", "reference", model]));
    // Free memory differs between runs.
    let of_model = |model: &str| -> Vec<String> {
        let lines = of(model).succeeds().lines().map(str::to_owned).collect::<Vec<_>>();
        lines.into_iter().filter(|line| !line.ends_with(" free")).collect()
    };
    assert_eq!(of_model(&parts[0]), of_model(&model));
    for part in &parts[1..] {
        logits(&home, part, &[]).fails_saying(&["split-00001-of-00003.gguf"]);
        of(part).fails_saying(&["split-00001-of-00003.gguf"]);
    }
    std::fs::remove_file(&parts[2]).unwrap();
    logits(&home, &parts[0], &[]).fails_saying(&["split-00003-of-00003.gguf"]);
}

#[test]
fn override_kv_replaces_metadata() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let plain = values(&home, &model, &[]);
    let with = |pair: &str| logits(&home, &model, &["--override-kv", pair]);
    assert_ne!(
        values(&home, &model, &["--override-kv", "llama.rope.freq_base=float:500"]),
        plain
    );
    assert_eq!(values(&home, &model, &["--override-kv", "my.own=str:a=b"]), plain);
    with("llama.block_count=str:two").fails_saying(&["llama.block_count"]);
    with("llama.block_count=int:0").fails_saying(&["block_count"]);
    with("general.architecture=str:no-such").fails_saying(&["no-such"]);
}

#[test]
fn check_tensors_rejects_nan() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let file = GgufFile::open(&model).unwrap();
    let t = file.tensor("blk.1.ffn_up.weight").expect("the model has this tensor");
    let at = file.tensor_offset(t) + 4 * 7;
    drop(file);
    let mut bytes = std::fs::read(&model).unwrap();
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&model, bytes).unwrap();
    logits(&home, &model, &[]).fails_saying(&["the model computed NaN"]);
    logits(&home, &model, &["--check-tensors"]).fails_saying(&["blk.1.ffn_up.weight", "NaN", "element 7"]);
}

/// Writes a rank-1 LoRA adapter for one matrix and returns its path.
fn lora(home: &Home, model: &str, b: f32) -> String {
    let file = GgufFile::open(model).unwrap();
    let name = "blk.0.attn_q.weight";
    let ne = file.tensor(name).expect("the model has this tensor").ne;
    let mut writer = GgufWriter::new();
    writer.set("general.type", "adapter").set("adapter.type", "lora");
    writer.set(
        "general.architecture",
        file.require::<&str>("general.architecture").unwrap(),
    );
    writer.set("adapter.lora.alpha", 1f32);
    let floats = |n: usize, x: f32| std::iter::repeat_n(x.to_le_bytes(), n).flatten().collect::<Vec<u8>>();
    writer
        .add_tensor(format!("{name}.lora_a"), GgmlType::F32, &[ne[0], 1], floats(ne[0], 0.1))
        .unwrap();
    writer
        .add_tensor(format!("{name}.lora_b"), GgmlType::F32, &[1, ne[1]], floats(ne[1], b))
        .unwrap();
    let path = home.path(&format!("lora{b}.gguf"));
    writer.write_file(&path).unwrap();
    text(path)
}

/// Writes a file with the metadata that llama.cpp's tools give to files that are not models.
fn other_file(home: &Home, name: &str, metadata: &[(&str, &str)], tensors: &[&str]) -> String {
    let mut writer = GgufWriter::new();
    for (key, value) in metadata {
        writer.set(*key, *value);
    }
    for tensor in tensors {
        writer.add_tensor(*tensor, GgmlType::F32, &[4], vec![0; 16]).unwrap();
    }
    let path = home.path(name);
    writer.write_file(&path).unwrap();
    text(path)
}

/// Writes a file of each kind other than models, and returns its path with parts of its error.
fn other_files(home: &Home, model: &str) -> Vec<(String, [&'static str; 2])> {
    let file = |name, metadata: &[_], tensor| other_file(home, name, metadata, &[tensor]);
    let projector = [("general.type", "mmproj"), ("general.architecture", "clip")];
    let vector = [("general.architecture", "controlvector")];
    let statistics = "blk.0.ffn_up.weight.in_sum2";
    vec![
        (lora(home, model, 1.0), ["is a LoRA adapter, not a model", "--lora"]),
        (
            file("mmproj.gguf", &projector, "v.a"),
            ["is a multimodal projector (mmproj), not a model", "language model"],
        ),
        (
            file("clip.gguf", &projector[1..], "v.a"),
            ["is a multimodal projector", "images"],
        ),
        (
            file("imatrix.gguf", &[("general.type", "imatrix")], statistics),
            ["is an importance matrix (imatrix), not a model", "quantize --imatrix"],
        ),
        (
            file("vector.gguf", &vector, "direction.1"),
            ["is a control vector, not a model", "--control-vector"],
        ),
        (
            vocabulary(home, model),
            ["is a vocabulary without weights, not a model", "llama tokenize"],
        ),
    ]
}

/// Writes the metadata of a model without its tensors.
fn vocabulary(home: &Home, model: &str) -> String {
    let path = home.path("vocab.gguf");
    let mut writer = GgufWriter::new();
    for (key, value) in Gguf::open_header(model).unwrap().metadata.iter() {
        writer.set(key, value.clone());
    }
    writer.write_file(&path).unwrap();
    text(path)
}

#[test]
fn files_that_are_not_models_are_named() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    for (path, parts) in other_files(&home, &model) {
        let parts = [path.as_str(), parts[0], parts[1]];
        for args in [
            &["run", &path, "abc"][..],
            &["serve", &path, "--port", "0"],
            &["embed", &path, "abc"],
            &["bench", "-m", &path],
            &["inspect", &path, "--plan"],
            &["run", &model, "abc", "--draft", &path],
        ] {
            ended(home.llama(args)).fails_saying(&parts);
        }
        let tokens = ended(home.llama(&["tokenize", &path, "abc"]));
        if path.ends_with("vocab.gguf") {
            let expected = ended(home.llama(&["tokenize", &model, "abc"]));
            assert_eq!(tokens.succeeds(), expected.succeeds());
        } else {
            tokens.fails_saying(&parts);
        }
    }
    // A file that is merely incomplete still lists what it lacks.
    let llama = [("general.architecture", "llama")];
    let incomplete = other_file(&home, "incomplete.gguf", &llama, &["token_embd.weight"]);
    ended(home.llama(&["run", &incomplete, "abc"])).fails_saying(&["llama.block_count"]);
}

#[test]
fn lora_scale_is_applied() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let (one, two) = (lora(&home, &model, 0.5), lora(&home, &model, 1.0));
    let plain = values(&home, &model, &[]);
    let adapted = values(&home, &model, &["--lora", &two]);
    assert!(nmse(&plain, &adapted) > 1e-6, "the adapter changes the logits");
    let same = |args: &[&str]| assert!(nmse(&adapted, &values(&home, &model, args)) < 1e-9, "{args:?}");
    same(&["--lora", &format!("{one}=2")]);
    same(&["--lora", &one, "--lora", &one]);
    same(&["--lora", &format!("{one},{one}")]);
    same(&["--lora-scaled", &format!("{one}:2.0")]);
    same(&["--lora-scaled", &format!("{two}:-1,{two}:1"), "--lora", &two]);
    same(&["--lora", &two, "--device", "reference"]);
    assert_eq!(values(&home, &model, &["--lora", &format!("{one}=0")]), plain);
    let fails = |args: &[&str], parts: &[&str]| logits(&home, &model, args).fails_saying(parts);
    fails(&["--lora", "missing.gguf"], &["missing.gguf"]);
    fails(&["--lora", &model], &["is a model, not a LoRA adapter"]);
    fails(&["--control-vector", &model], &["is a model, not a control vector"]);
    fails(
        &["--control-vector", &two],
        &["is a LoRA adapter, not a control vector"],
    );
    for bad in [format!("{one}:much"), one.clone()] {
        let refused = logits(&home, &model, &["--lora-scaled", &bad]);
        assert!(
            refused.status == 2 && refused.err.contains("FILE:SCALE"),
            "{}",
            refused.err
        );
    }
    let other = home.model("qwen2-dense", None);
    logits(&home, &other, &["--lora", &one]).fails_saying(&["general.architecture", "qwen2"]);
    assert_eq!(logits(&home, &model, &["--lora", ""]).status, 2);
    // A prompt cache records its adapters.
    let file = text(home.path("adapted"));
    let run = |more: &[&str]| {
        ended(home.llama(&[&["run", &model, "abc", "-n", "2", "--prompt-cache", &file], more].concat()))
    };
    run(&["--lora", &one]).succeeds();
    run(&["--lora", &one]).succeeds();
    run(&["--lora", &two]).fails_saying(&["adapted", "settings", "adapters"]);
    run(&[]).fails_saying(&["adapted", "adapters", "none"]);
}

#[test]
fn control_vector_applies_to_layer_range() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let n_embd: usize = GgufFile::open(&model)
        .unwrap()
        .require("llama.embedding_length")
        .unwrap();
    let path = text(home.path("direction.gguf"));
    let mut writer = GgufWriter::new();
    let direction: Vec<u8> = (0..n_embd).flat_map(|i| (i as f32).sin().to_le_bytes()).collect();
    writer
        .add_tensor("direction.1", GgmlType::F32, &[n_embd], direction)
        .unwrap();
    writer.write_file(&path).unwrap();
    let plain = values(&home, &model, &[]);
    let with = |args: &[&str]| values(&home, &model, args);
    let scaled = format!("{path}=0.5");
    let acting = with(&["--control-vector", &path]);
    assert!(nmse(&plain, &acting) > 1e-6, "the control vector changes the logits");
    assert_eq!(
        with(&["--control-vector", &scaled, "--control-vector", &scaled]),
        acting
    );
    assert_eq!(with(&["--control-vector-scaled", &format!("{path}:1.0")]), acting);
    let range = "--control-vector-layer-range";
    assert_eq!(with(&["--control-vector", &path, range, "1", "1"]), acting);
    assert_eq!(with(&["--control-vector", &path, range, "0", "0"]), plain);
    let fails = |args: &[&str], parts: &[&str]| logits(&home, &model, args).fails_saying(parts);
    fails(&["--control-vector", &path, range, "2", "1"], &[range, "[2, 1]"]);
    fails(&["--control-vector", &path, range, "99", "99"], &[range]);
    fails(&["--control-vector", "missing.gguf"], &["missing.gguf"]);
    fails(&["--control-vector", &model], &["is a model, not a control vector"]);
    fails(&[range, "1", "1"], &[range, "--control-vector"]);
    assert_eq!(
        logits(&home, &model, &["--control-vector", &path, range, "1"]).status,
        2
    );
}

#[test]
fn prompt_cache_resumes() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let file = text(home.path("session"));
    let run = |prompt: &str, args: &[&str]| {
        let fixed = ["run", &model, prompt, "--temp", "0", "-n", "6"];
        ended(home.llama(&[&fixed[..], args].concat()))
    };
    let kept = ["--prompt-cache", &file];
    for prompt in ["once upon a time", "once upon a time", "once upon a hill", "once"] {
        assert_eq!(run(prompt, &kept).succeeds(), run(prompt, &[]).succeeds(), "{prompt}");
    }
    run("once upon a hill", &kept).succeeds();
    let again = run("once upon a hill", &kept);
    assert!(again.err.contains(" cached)"), "{}", again.err);

    let state = std::fs::read(&file).unwrap();
    let refused = |content: &[u8], args: &[&str], parts: &[&str]| {
        std::fs::write(&file, content).unwrap();
        run("once", &[&kept[..], args].concat()).fails_saying(parts);
        assert_eq!(std::fs::read(&file).unwrap(), content, "the file is unchanged");
    };
    refused(b"something else", &[], &["session", "not a saved state"]);
    refused(b"", &[], &["session"]);
    refused(&state[..state.len() - 1], &[], &["session", "bytes"]);
    let mut damaged = state.clone();
    damaged[state.len() / 2] ^= 1;
    refused(&damaged, &[], &["session", "corrupt state"]);
    refused(&state, &["-ctk", "f32"], &["session", "settings"]);
    let other = home.model("qwen2-dense", None);
    std::fs::write(&file, &state).unwrap();
    ended(home.llama(&["run", &other, "once", "--prompt-cache", &file]))
        .fails_saying(&["session", "a different model"]);
    run("once", &["--prompt-cache", "no/such/directory/s"]).fails_saying(&["no/such/directory"]);
    run("once", &["--prompt-cache", &text(home.path(""))]).fails_saying(&["not a regular file"]);
}

#[cfg(unix)]
#[test]
fn loading_shows_progress_bar() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let mut terminal = crate::common::terminal::Terminal::start(home.llama(&[
        "run",
        &model,
        "abc",
        "-n",
        "1",
        "--device",
        "reference",
    ]));
    terminal.wait_for("loading [");
    terminal.wait_for("generated 1 token");
    assert!(terminal.end().success());
}
