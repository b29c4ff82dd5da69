//! Tests of `llama cvector`.

use engine::gguf::{Gguf, GgufFile};

use crate::common::{Ended, Home, ended};

fn path(home: &Home, name: &str) -> String {
    home.path(name).into_os_string().into_string().unwrap()
}

fn prompts(home: &Home, name: &str, text: &str) -> String {
    let path = path(home, name);
    std::fs::write(&path, text).unwrap();
    path
}

fn cvector(home: &Home, args: &[&str]) -> Ended {
    ended(home.llama(&[&["cvector"][..], args].concat()))
}

fn directions(path: &str) -> Vec<(String, Vec<f32>)> {
    let file = GgufFile::open(path).unwrap();
    let floats = |bytes: &[u8]| {
        bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b))
            .collect()
    };
    let tensors = file.tensors().iter();
    tensors.map(|t| (t.name.clone(), floats(file.tensor_data(t)))).collect()
}

#[test]
fn cvector_writes_a_file_that_changes_logits() {
    let home = Home::new();
    let model = home.model_with_text("gpt2", None);
    let good = prompts(&home, "good.txt", "I am one yes\n\nI am true, yes one\\nyes\n");
    let bad = prompts(&home, "bad.txt", "I am two no\nI am false, no no one\n");
    let out = path(&home, "v.gguf");
    let pair = ["--positive", &good, "--negative-file", &bad, "-o", &out];
    for method in ["pca", "mean"] {
        let result = cvector(
            &home,
            &[&[&model[..], "--method", method, "--force"], &pair[..]].concat(),
        );
        assert!(result.succeeds().contains("from 2 pairs"), "{}", result.out);
        let file = GgufFile::open(&out).unwrap();
        assert_eq!(file.require::<&str>("general.architecture").unwrap(), "controlvector");
        assert_eq!(file.require::<&str>("controlvector.model_hint").unwrap(), "llama");
        let n_layers = Gguf::open_header(&model)
            .unwrap()
            .metadata
            .require::<u32>("llama.block_count")
            .unwrap();
        assert_eq!(
            file.require::<i32>("controlvector.layer_count").unwrap() as u32,
            n_layers - 1
        );
        let found = directions(&out);
        let names: Vec<_> = found.iter().map(|(name, _)| name.clone()).collect();
        let expected: Vec<_> = (1..n_layers).map(|layer| format!("direction.{layer}")).collect();
        assert_eq!(names, expected);
        for (name, direction) in &found {
            let norm: f32 = direction.iter().map(|x| x * x).sum();
            assert!((norm - 1.0).abs() < 1e-5, "{name}: {norm}");
        }
    }
    let logits = |name: &str, args: &[&str]| {
        let out = path(&home, name);
        ended(home.llama(&[&["logits", &model, "--tokens", "1,9,20", "-o", &out][..], args].concat())).succeeds();
        std::fs::read(&out).unwrap()
    };
    assert!(logits("a", &[]) != logits("b", &["--control-vector", &out]));
}

/// Weights of a model in F32.
struct Weights(GgufFile);

impl Weights {
    fn tensor(&self, name: &str) -> Vec<f64> {
        let info = self.0.tensor(name).unwrap();
        let bytes = self.0.tensor_data(info).as_chunks::<4>().0;
        bytes.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect()
    }

    /// Returns the product of a matrix and `x`, plus the bias.
    fn projected(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let (rows, bias) = (
            self.tensor(&format!("{name}.weight")),
            self.tensor(&format!("{name}.bias")),
        );
        let rows = rows.chunks_exact(x.len()).zip(bias);
        rows.map(|(row, bias)| dot(row, x) + bias).collect()
    }

    fn normalized(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let epsilon = self.0.require::<f32>("llama.attention.layer_norm_rms_epsilon").unwrap();
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let scale = 1.0 / (mean + f64::from(epsilon)).sqrt();
        let weights = self.tensor(&format!("{name}.weight"));
        x.iter().zip(weights).map(|(x, w)| x * scale * w).collect()
    }

    /// Returns the outputs of all layers for a single token, which attends to its own value only.
    fn outputs(&self, token: usize) -> Vec<Vec<f64>> {
        let number = |key: &str| self.0.require::<u32>(&format!("llama.{key}")).unwrap() as usize;
        let n_embd = number("embedding_length");
        let n_shared = number("attention.head_count") / number("attention.head_count_kv");
        let mut x = self.tensor("token_embd.weight")[token * n_embd..][..n_embd].to_vec();
        let layers = (0..number("block_count")).map(|layer| {
            let name = |kind: &str| format!("blk.{layer}.{kind}");
            let add = |x: &mut Vec<f64>, y: Vec<f64>| x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
            let values = self.projected(&name("attn_v"), &self.normalized(&name("attn_norm"), &x));
            let head = values.len() / number("attention.head_count_kv");
            let repeated: Vec<f64> = values.chunks_exact(head).flat_map(|v| v.repeat(n_shared)).collect();
            add(&mut x, self.projected(&name("attn_output"), &repeated));
            let h = self.normalized(&name("ffn_norm"), &x);
            let (gate, up) = (
                self.projected(&name("ffn_gate"), &h),
                self.projected(&name("ffn_up"), &h),
            );
            let h: Vec<f64> = gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
            add(&mut x, self.projected(&name("ffn_down"), &h));
            x.clone()
        });
        layers.collect()
    }
}

fn unit(x: &[f64]) -> Vec<f64> {
    let norm = x.iter().map(|x| x * x).sum::<f64>().sqrt();
    x.iter().map(|x| x / norm).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Returns the sum of the rows, each times its factor.
fn combined(rows: &[Vec<f64>], factors: &[f64]) -> Vec<f64> {
    let column = |i: usize| rows.iter().zip(factors).map(|(row, f)| row[i] * f).sum();
    (0..rows[0].len()).map(column).collect()
}

/// Directions equal those of outputs that the test computes from the weights in 64 bits.
#[test]
fn directions_match_a_computation_from_the_weights() {
    let home = Home::new();
    let model = home.model_with_text("gpt2", None);
    let (good, bad) = (
        prompts(&home, "good.txt", "y\nq\nR\n"),
        prompts(&home, "bad.txt", "n\nk\n7\n"),
    );
    let weights = Weights(GgufFile::open(&model).unwrap());
    // In the vocabulary, `!` is token 5, and the following characters are the next tokens.
    let outputs = |char: u8| weights.outputs(usize::from(char - b'!') + 5);
    let pairs = [(b'y', b'n'), (b'q', b'k'), (b'R', b'7')].map(|(a, b)| (outputs(a), outputs(b)));
    for method in ["mean", "pca"] {
        let out = path(&home, method);
        let files = ["--positive", &good, "--negative", &bad, "--method", method, "-o", &out];
        cvector(&home, &[&[&model[..]], &files[..]].concat()).succeeds();
        for (layer, (_, found)) in directions(&out).iter().enumerate() {
            let row =
                |(a, b): &(Vec<Vec<f64>>, Vec<Vec<f64>>)| combined(&[a[layer].clone(), b[layer].clone()], &[1.0, -1.0]);
            let rows: Vec<_> = pairs.iter().map(row).collect();
            let mean = unit(&combined(&rows, &[1.0; 3]));
            let mut expected = mean.clone();
            for _ in 0..if method == "pca" { 10_000 } else { 0 } {
                let projections: Vec<f64> = rows.iter().map(|row| dot(row, &expected)).collect();
                expected = unit(&combined(&rows, &projections));
            }
            if dot(&expected, &mean) < 0.0 {
                expected.iter_mut().for_each(|x| *x = -*x);
            }
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(&expected) {
                assert!(
                    (f64::from(*found) - expected).abs() < 1e-4,
                    "{method}, {layer}: {found} {expected}"
                );
            }
        }
    }
}

#[test]
fn cvector_reports_invalid_prompts() {
    let home = Home::new();
    let model = home.model_with_text("gpt2", None);
    let (one, two) = (
        prompts(&home, "one.txt", "yes\n"),
        prompts(&home, "two.txt", "yes\nno\n"),
    );
    let empty = prompts(&home, "empty.txt", "\n\n");
    let out = path(&home, "v.gguf");
    let run = |positive: &str, negative: &str| {
        cvector(
            &home,
            &[&model, "--positive", positive, "--negative", negative, "-o", &out],
        )
    };
    run(&one, &two).fails_saying(&["one.txt has 1 prompt,", "two.txt has 2"]);
    run(&empty, &two).fails_saying(&["empty.txt: no prompts"]);
    run(&one, &one).fails_saying(&["the same outputs for positive and negative prompts"]);
    assert!(!std::path::Path::new(&out).exists());
}
