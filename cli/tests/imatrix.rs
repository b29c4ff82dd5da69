//! Tests of `llama imatrix`.

use engine::gguf::{Gguf, GgufFile, GgufSet, GgufWriter};
use engine::importance::ImportanceMatrix;

use crate::common::{Ended, Home, ended};

fn path(home: &Home, name: &str) -> String {
    home.path(name).into_os_string().into_string().unwrap()
}

/// Writes a text of a few hundred tokens for a vocabulary of characters.
fn text(home: &Home, name: &str, factor: usize) -> String {
    let text: String = (0..30)
        .map(|i| format!("{} ships sail on the sea. ", i * factor))
        .collect();
    let path = path(home, name);
    std::fs::write(&path, text).unwrap();
    path
}

fn imatrix(home: &Home, args: &[&str]) -> Ended {
    ended(home.llama(&[&["imatrix"][..], args].concat()))
}

fn open(path: &str) -> ImportanceMatrix {
    ImportanceMatrix::open(std::path::Path::new(path)).unwrap()
}

#[track_caller]
fn assert_close(a: &ImportanceMatrix, b: &ImportanceMatrix) {
    assert_eq!(
        a.entries.keys().collect::<Vec<_>>(),
        b.entries.keys().collect::<Vec<_>>()
    );
    for (name, entry) in &a.entries {
        let other = &b.entries[name];
        assert_eq!(entry.counts, other.counts, "{name}");
        for (x, y) in entry.squares.iter().zip(&other.squares) {
            assert!((x - y).abs() <= 1e-3 * x.abs() + 1e-5, "{name}: {x} {y}");
        }
    }
}

/// The first matrix of layer 0 reads the norm of embeddings, which the test recomputes from the file.
#[test]
fn sums_equal_those_of_recomputed_inputs() {
    let home = Home::new();
    let (model, text) = (home.model_with_text("gpt2", None), text(&home, "text.txt", 3));
    let out = path(&home, "m.gguf");
    imatrix(&home, &[&model, "-f", &text, "-c", "32", "--chunks", "2", "-o", &out]).succeeds();
    let matrix = open(&out);
    assert_eq!((matrix.n_chunks, matrix.chunk_size, matrix.datasets.len()), (2, 32, 1));
    let ids = ended(home.llama(&["tokenize", &model, "--ids", &std::fs::read_to_string(&text).unwrap()]));
    let ids: Vec<usize> = ids
        .succeeds()
        .trim()
        .split(',')
        .take(64)
        .map(|id| id.parse().unwrap())
        .collect();
    let set = GgufSet::from_file(GgufFile::open(&model).unwrap()).unwrap();
    let floats = |name: &str| -> Vec<f32> {
        let (_, info) = set.tensor(name).unwrap();
        let mut floats = vec![0.0; info.n_elements()];
        kernels::dequantize_row(info.ty, set.tensor_data(name).unwrap(), &mut floats);
        floats
    };
    let norm = floats("blk.0.attn_norm.weight");
    let embedding = floats("token_embd.weight");
    let n = norm.len();
    let arch: &str = set.require("general.architecture").unwrap();
    let eps: f32 = set
        .require(&format!("{arch}.attention.layer_norm_rms_epsilon"))
        .unwrap();
    let mut expected = vec![0.0; n];
    for id in ids {
        let row = &embedding[id * n..][..n];
        let mean: f64 = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / n as f64;
        let scale = 1.0 / (mean + f64::from(eps)).sqrt();
        for i in 0..n {
            expected[i] += (f64::from(row[i]) * scale * f64::from(norm[i])).powi(2);
        }
    }
    let entry = &matrix.entries["blk.0.attn_q.weight"];
    assert_eq!(entry.counts, [64]);
    for (found, expected) in entry.squares.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-4 * expected, "{found} {expected}");
    }
    assert!(!matrix.entries.contains_key("output.weight"));
    let outputs = imatrix(
        &home,
        &[
            &model,
            "-f",
            &text,
            "-c",
            "32",
            "--chunks",
            "1",
            "-o",
            &out,
            "--process-output",
        ],
    );
    outputs.succeeds();
    assert_eq!(open(&out).entries.len(), matrix.entries.len() + 1);
}

/// Writes a model whose output projection equals the token embedding: as a copy, or as a missing tensor.
fn model_with_equal_output(home: &Home, is_tied: bool) -> String {
    let bytes = ::tests::text_model("gpt2", None);
    let header = Gguf::parse_header(&bytes).unwrap();
    let data = |name: &str| {
        let tensor = header.tensors().iter().find(|t| t.name == name).unwrap();
        &bytes[header.data_offset() + tensor.offset..][..tensor.bytes]
    };
    let mut writer = GgufWriter::with_metadata(header.metadata.clone());
    for t in header.tensors() {
        let is_output = t.name == "output.weight";
        if !(is_output && is_tied) {
            let source = if is_output { "token_embd.weight" } else { &t.name };
            let added = writer.add_tensor(t.name.as_str(), t.ty, &t.ne[..t.n_dims], data(source));
            added.unwrap();
        }
    }
    let model = path(home, if is_tied { "tied.gguf" } else { "copied.gguf" });
    std::fs::write(&model, writer.to_bytes().unwrap()).unwrap();
    model
}

#[test]
fn tied_embedding_has_the_importance_of_an_output_projection() {
    let home = Home::new();
    let (out, text) = (path(&home, "m.gguf"), text(&home, "text.txt", 3));
    let common = ["-f", &text[..], "-c", "32", "--chunks", "2", "-o", &out[..]];
    let collect = |args: &[&str]| {
        imatrix(&home, &[&common[..], args].concat()).succeeds();
        open(&out)
    };
    let tied = collect(&[&model_with_equal_output(&home, true)]);
    let copied = collect(&[&model_with_equal_output(&home, false), "--process-output"]);
    let (tied, copied) = (&tied.entries["token_embd.weight"], &copied.entries["output.weight"]);
    assert_eq!(tied.counts, [64]);
    assert_eq!((&tied.squares, &tied.counts), (&copied.squares, &copied.counts));
}

#[test]
fn merged_resumed_and_batched_sums_agree() {
    let home = Home::new();
    let model = home.model_with_text("gpt2", None);
    let (a, b) = (text(&home, "a.txt", 3), text(&home, "b.txt", 7));
    let files = ["both", "a", "b", "merged"].map(|name| path(&home, name));
    let [both, only_a, only_b, merged] = &files;
    let common = [&model[..], "-c", "16", "--chunks", "3"];
    let run = |args: &[&str]| imatrix(&home, &[&common[..], args].concat());
    run(&["-f", &a, "-f", &b, "-o", both]).succeeds();
    run(&["-f", &a, "-o", only_a, "-ub", "16"]).succeeds();
    run(&["-f", &b, "-o", only_b]).succeeds();
    imatrix(&home, &["--merge", only_a, "--merge", only_b, "-o", merged]).succeeds();
    assert_close(&open(both), &open(merged));
    // The resumed run adds the second text to the sums of the first run.
    run(&["-f", &a, "-f", &b, "-o", only_a, "--resume"]).succeeds();
    assert_close(&open(both), &open(only_a));
    run(&["-f", &b, "-f", &a, "-o", only_a, "--resume"]).fails_saying(&["collected with other texts"]);
    let shown = imatrix(&home, &["--show", both]);
    assert!(shown.succeeds().contains("blk.0.attn_q.weight"), "{}", shown.out);
    let stopped = run(&["-f", &a, "-o", "/no/such/directory/x"]);
    stopped.fails_saying(&["cannot write /no/such/directory/x"]);
    imatrix(&home, &["--show", &model]).fails_saying(&["not a valid importance matrix: the file is a model"]);
    imatrix(&home, &["--show", &a]).fails_saying(&["a.txt", "not a valid importance matrix"]);
}
