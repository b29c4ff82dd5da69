//! Tests of `llama gguf`: splitting, merging, editing, comparing, and checking files.

use std::fs;
use std::path::Path;

use engine::gguf::{Gguf, GgufFile, GgufWriter, Value};
use kernels::GgmlType;

use crate::common::{Ended, Home, ended};
use crate::crash_safety::{Full, limited};

fn gguf(home: &Home, args: &[&str]) -> Ended {
    ended(home.llama(&[&["gguf"], args].concat()))
}

fn path(home: &Home, name: &str) -> String {
    home.path(name).into_os_string().into_string().unwrap()
}

/// Returns the names of all files in the home directory, to find files that are left behind.
fn files(home: &Home) -> Vec<String> {
    let entries = fs::read_dir(home.path(".")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| name.contains("gguf")).collect();
    names.sort();
    names
}

fn model_digest(home: &Home, model: &str) -> String {
    let result = gguf(home, &["hash", "--json", model]);
    let report: serde_json::Value = serde_json::from_str(result.succeeds()).unwrap();
    report["sha256"].as_str().unwrap().to_owned()
}

#[test]
fn split_and_merge_restore_the_file() {
    let home = Home::new();
    let model = home.model("qwen3-dense", None);
    let prefix = path(&home, "part");
    let expected = fs::read(&model).unwrap();
    for limit in [
        &["--max-tensors", "7"][..],
        &["--max-size", "20KiB"],
        &["--max-tensors", "9", "--no-tensor-first-split"],
    ] {
        let planned = gguf(&home, &[&["split", &model, &prefix, "--dry-run"], limit].concat());
        let n_parts = planned.succeeds().lines().count();
        assert!(n_parts > 2, "{}", planned.out);
        assert_eq!(files(&home).len(), 1, "a dry run writes nothing");
        let written = gguf(&home, &[&["split", &model, &prefix], limit].concat());
        assert_eq!(written.succeeds(), planned.out);
        let first = path(&home, &format!("part-00001-of-{n_parts:05}.gguf"));
        if limit.len() == 3 {
            assert!(Gguf::open_header(&first).unwrap().tensors().is_empty());
        }
        assert_eq!(model_digest(&home, &first), model_digest(&home, &model));
        let answer = |model: &str| ended(home.llama(&["run", model, "abc", "--temp", "0", "-n", "5", "--no-stats"]));
        assert_eq!(answer(&first).succeeds(), answer(&model).succeeds());
        let merged = path(&home, "merged.gguf");
        gguf(&home, &["merge", &first, &merged]).succeeds();
        assert!(fs::read(&merged).unwrap() == expected, "{limit:?}");
        gguf(&home, &["merge", &first, &merged]).fails_saying(&["merged.gguf exists", "--force"]);
        gguf(&home, &["merge", &first, &merged, "--force"]).succeeds();
        // The mode of any new file under this umask.
        let mode = |path: &str| fs::metadata(path).unwrap().permissions();
        assert_eq!(mode(&merged), mode(&model));
        for name in files(&home).iter().filter(|name| *name != "qwen3-dense.gguf") {
            fs::remove_file(home.path(name)).unwrap();
        }
    }
}

#[test]
fn failed_split_reports_no_parts() {
    let home = Home::new();
    let model = home.model("qwen3-dense", None);
    let command = home.llama(&["gguf", "split", &model, &path(&home, "part"), "--max-tensors", "7"]);
    let failed = ended(limited(command, 20_000, Full::Fails));
    failed.fails_saying(&["cannot write", "part-00001"]);
    assert_eq!(failed.out, "");
    assert_eq!(files(&home), ["qwen3-dense.gguf"]);
}

#[test]
fn edit_with_reserve_is_in_place_and_reversible() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let roomy = path(&home, "roomy.gguf");
    let before = model_digest(&home, &model);
    let made = gguf(
        &home,
        &[
            "set",
            &model,
            "general.author:string=A",
            "-o",
            &roomy,
            "--reserve",
            "4KiB",
        ],
    );
    assert!(made.succeeds().contains("written"), "{}", made.out);
    let bytes = fs::read(&roomy).unwrap();
    let template = path(&home, "template.jinja");
    fs::write(&template, "{{ messages[0].content }}\n").unwrap();
    let from_file = format!("tokenizer.chat_template={template}");
    let set = gguf(
        &home,
        &["set", &roomy, "--file", &from_file, "general.author=Somebody else"],
    );
    assert!(set.succeeds().contains("edited in place"), "{}", set.out);
    let header = Gguf::open_header(&roomy).unwrap();
    assert_eq!(header.optional("general.author").unwrap(), Some("Somebody else"));
    assert_eq!(
        header.optional("tokenizer.chat_template").unwrap(),
        Some("{{ messages[0].content }}\n")
    );
    assert_eq!(fs::metadata(&roomy).unwrap().len(), bytes.len() as u64);
    assert_eq!(model_digest(&home, &roomy), before);
    gguf(&home, &["remove", &roomy, "tokenizer.chat_template"]).succeeds();
    gguf(&home, &["set", &roomy, "general.author=A"]).succeeds();
    assert!(fs::read(&roomy).unwrap() == bytes, "the header is restored");
    assert_eq!(files(&home), ["llama-dense.gguf", "roomy.gguf"]);
}

#[test]
fn edit_that_does_not_fit_writes_a_copy() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let (before, digest) = (fs::read(&model).unwrap(), model_digest(&home, &model));
    let long = format!("general.description:string={}", "x".repeat(5000));
    let planned = gguf(&home, &["set", &model, &long, "--dry-run"]);
    assert!(
        planned.succeeds().contains("would be written as a copy"),
        "{}",
        planned.out
    );
    assert!(fs::read(&model).unwrap() == before);
    gguf(&home, &["set", &model, &long]).succeeds();
    assert_eq!(model_digest(&home, &model), digest);
    gguf(&home, &["remove", &model, "general.description"]).succeeds();
    let diff = gguf(&home, &["diff", &model, &model]);
    assert!(diff.succeeds().contains("0 keys and 0 tensors differ"), "{}", diff.out);
    assert_eq!(files(&home), ["llama-dense.gguf"]);
}

#[test]
fn edit_errors_name_key_and_reason() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let before = fs::read(&model).unwrap();
    let edit = |args: &[&str]| gguf(&home, args);
    edit(&["remove", &model, "general.architectur"])
        .fails_saying(&["general.architectur", "did you mean general.architecture"]);
    edit(&["set", &model, "my.key=1"]).fails_saying(&["my.key", "type of a new key", "my.key:u32="]);
    edit(&["set", &model, "llama.block_count=two"]).fails_saying(&["llama.block_count", "u32", "two"]);
    edit(&["set", &model, "llama.block_count=77"]).fails_saying(&["would not load", "--force"]);
    edit(&["set", &model, "general.alignment:u32=64"]).fails_saying(&["general.alignment", "layout"]);
    edit(&["rename", &model, "general.architecture", "general.name"]).fails_saying(&[]);
    edit(&["rename", &model, "--tensor", "output_norm.weight", "norm.weight"])
        .fails_saying(&["output_norm.weight", "--force"]);
    edit(&["rename", &model, "--tensor", "output_norm.weigh", "x"]).fails_saying(&["did you mean output_norm.weight"]);
    edit(&["set", &model, "my.key:u32=1", "-o", &path(&home, "missing/out.gguf")]).fails_saying(&["out.gguf"]);
    edit(&["set", "missing.gguf", "a=1"]).fails_saying(&["missing.gguf"]);
    assert!(fs::read(&model).unwrap() == before);
    assert_eq!(files(&home), ["llama-dense.gguf"]);
    edit(&[
        "rename",
        &model,
        "--tensor",
        "output_norm.weight",
        "norm.weight",
        "--force",
    ])
    .succeeds();
    assert!(Gguf::open_header(&model).unwrap().tensor("norm.weight").is_some());
}

#[test]
fn interrupted_edit_is_undone_by_the_next() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    gguf(&home, &["set", &model, "a:string=12345678", "--reserve", "100"]).succeeds();
    let old = fs::read(&model).unwrap();
    gguf(&home, &["set", &model, "a=87654321"]).succeeds();
    let new = fs::read(&model).unwrap();
    let header_len = Gguf::open_header(&model).unwrap().data_offset();
    let at = old.iter().zip(&new).position(|(a, b)| a != b).unwrap();
    let backup = path(&home, "llama-dense.gguf.header-backup");
    let torn = |n_written: usize, backed: &[u8]| {
        let mut bytes = old.clone();
        bytes[at..at + n_written].copy_from_slice(&new[at..at + n_written]);
        fs::write(&model, bytes).unwrap();
        fs::write(&backup, backed).unwrap();
        gguf(&home, &["set", &model, "a=12345678"])
    };
    let both = [&old[..header_len], &new[..header_len]].concat();
    for n_written in [0, 3, 8] {
        torn(n_written, &both).succeeds();
        assert!(
            fs::read(&model).unwrap() == old && !Path::new(&backup).exists(),
            "{n_written}"
        );
    }
    torn(3, &vec![7; both.len()]).fails_saying(&["header-backup", "another file"]);
    assert!(Path::new(&backup).exists());
}

#[test]
fn hash_compares_with_its_own_output() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let manifest = path(&home, "digests");
    fs::write(&manifest, gguf(&home, &["hash", &model]).succeeds()).unwrap();
    let equal = gguf(&home, &["hash", &model, "--check", &manifest]);
    assert!(equal.succeeds().ends_with("equal digests\n"), "{}", equal.out);
    let other = home.path("other.gguf");
    let (file, mut bytes) = (GgufFile::open(&model).unwrap(), fs::read(&model).unwrap());
    let tensor = file.tensor("output_norm.weight").unwrap();
    bytes[file.tensor_offset(tensor)] ^= 1;
    fs::write(&other, bytes).unwrap();
    gguf(&home, &["hash", other.to_str().unwrap(), "--check", &manifest]).fails_saying(&[
        "2 of",
        "digests differ from",
        "output_norm.weight differs",
    ]);
    gguf(&home, &["hash", &model, "--check", &model]).fails_saying(&["llama-dense.gguf"]);
}

#[test]
fn digest_of_empty_message_is_that_of_the_standard() {
    let home = Home::new();
    let mut writer = GgufWriter::new();
    writer.add_tensor("t", GgmlType::I8, &[3], b"abc".to_vec()).unwrap();
    let model = path(&home, "abc.gguf");
    writer.write_file(&model).unwrap();
    // FIPS 180-4, example of SHA-256 for the message "abc".
    let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert!(gguf(&home, &["hash", &model]).succeeds().contains(digest));
}

/// Writes a model of one f32 tensor of two rows.
fn model_of(home: &Home, name: &str, values: [f32; 6]) -> String {
    let mut writer = GgufWriter::new();
    writer.set("general.name", name);
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    writer.add_tensor("t", GgmlType::F32, &[3, 2], bytes).unwrap();
    let model = path(home, name);
    writer.write_file(&model).unwrap();
    model
}

#[test]
fn diff_prints_keys_and_errors_of_weights() {
    let home = Home::new();
    let a = model_of(&home, "a.gguf", [3.0, 0.0, 0.0, 0.0, 0.0, 4.0]);
    let b = model_of(&home, "b.gguf", [3.0, 0.0, 0.0, 0.0, 0.0, 4.5]);
    let result = gguf(&home, &["diff", &a, &b, "--json"]);
    assert_eq!(result.status, 1, "{}", result.err);
    let report: serde_json::Value = serde_json::from_str(&result.out).unwrap();
    assert_eq!(report["keys"][0]["key"], "general.name");
    // sqrt(0.25 / (9 + 16))
    assert_eq!(report["tensors"][0]["error"], 0.1);
    assert_eq!(report["tensors"][0]["max_difference"], 0.5);
    let text = gguf(&home, &["diff", &a, &b]).out;
    assert!(
        text.contains("t: f32 3 x 2, error 1.000e-1, largest 5.000e-1"),
        "{text}"
    );
    assert!(
        gguf(&home, &["diff", &a, &a])
            .succeeds()
            .contains("1 key and 1 tensor are equal")
    );
}

#[test]
fn verify_names_value_that_is_not_finite() {
    let home = Home::new();
    let whole = home.model("llama-dense", None);
    assert!(
        gguf(&home, &["verify", &whole])
            .succeeds()
            .contains("complete and finite")
    );
    let damaged = model_of(&home, "c.gguf", [1.0, 1.0, 1.0, 1.0, f32::NAN, 1.0]);
    gguf(&home, &["verify", &damaged]).fails_saying(&["tensor \"t\"", "NaN", "row 1, column 1"]);
    let mut bytes = fs::read(&whole).unwrap();
    bytes.truncate(bytes.len() - 64);
    fs::write(&whole, bytes).unwrap();
    gguf(&home, &["verify", &whole]).fails_saying(&["truncated"]);
}

#[test]
fn verify_checks_token_ids() {
    let home = Home::new();
    let model = home.model_with_text("llama", None);
    gguf(&home, &["verify", &model]).succeeds();
    gguf(
        &home,
        &["set", &model, "tokenizer.ggml.eos_token_id:u32=7777", "--force"],
    )
    .succeeds();
    gguf(&home, &["verify", &model]).fails_saying(&["tokenizer.ggml.eos_token_id", "7777", "tokens"]);
}

#[test]
fn dump_prints_whole_arrays() {
    let home = Home::new();
    let model = home.model_with_text("llama", None);
    let result = gguf(&home, &["dump", "--json", &model]);
    let report: serde_json::Value = serde_json::from_str(result.succeeds()).unwrap();
    let tokens = report["metadata"]["tokenizer.ggml.tokens"].as_array().unwrap();
    let header = Gguf::open_header(&model).unwrap();
    let expected = header.metadata.get("tokenizer.ggml.tokens").and_then(Value::as_array);
    assert_eq!(tokens.len(), expected.unwrap().len());
}
