//! Images on the command line: `llama run --image`, `llama encode`, and encoders in `llama arch` and `inspect`.

use std::path::Path;

use engine::conformance::Draft;
use engine::context::MediaEncoder;
use engine::gguf::logits::Logits;
use engine::gguf::{Metadata, StringArray, Value};
use engine::model::Model;

use crate::common::{Ended, Home, ended, root};

/// Chat template with a turn per message.
const TEMPLATE: &str = "{% for m in messages %}{{ m.content }}\n{% endfor %}";

/// Width of the embeddings of the text model.
const N_EMBD: f64 = 256.0;

/// Side of the images that the projector takes.
const SIDE: usize = 112;

fn run(home: &Home, args: &[&str]) -> Ended {
    ended(home.llama(args))
}

/// Writes a file and returns its path.
fn file(home: &Home, name: &str, bytes: &[u8]) -> String {
    let path = home.path(name);
    std::fs::write(&path, bytes).unwrap();
    path.into_os_string().into_string().unwrap()
}

/// Replaces the last words of the vocabulary by control tokens.
fn with_control_tokens(metadata: &mut Metadata, texts: &[&str]) {
    let array = |metadata: &Metadata, key| metadata.get(key).and_then(Value::as_array).unwrap().clone();
    let tokens = array(metadata, "tokenizer.ggml.tokens");
    let n = tokens.len() - 2;
    let text = |i: usize| match (n..n + 2).contains(&i) || i + texts.len() < n {
        true => tokens.get(i).unwrap().as_str().unwrap().to_owned(),
        false => texts[i + texts.len() - n].to_owned(),
    };
    let all: Vec<String> = (0..tokens.len()).map(text).collect();
    let kind = |i: usize| i32::from(i < 3 || i >= n || i + texts.len() >= n) * 2 + 1;
    metadata.insert(
        "tokenizer.ggml.tokens",
        all.iter().map(String::as_str).collect::<StringArray>(),
    );
    metadata.insert(
        "tokenizer.ggml.token_type",
        (0..all.len()).map(kind).collect::<Vec<i32>>(),
    );
}

const AROUND: [&str; 2] = ["<fake_token_around_image>", "<global-img>"];

/// Writes a language model with these control tokens.
fn language_model(home: &Home, control: &[&str]) -> String {
    let bytes = tests::text_model_with("llama", Some(TEMPLATE), |m| with_control_tokens(m, control));
    file(home, "model.gguf", &bytes)
}

/// Writes a projector with rows of this width.
fn projector(home: &Home, n_out: f64) -> String {
    let arch = archs::find_encoder("idefics3").unwrap().arch;
    let mut sizes = arch.test.to_vec();
    sizes
        .iter_mut()
        .filter(|(name, _)| *name == "n_out")
        .for_each(|(_, n)| *n = n_out);
    let draft = Draft::of_sizes(arch, archs::ENCODERS, &sizes, |_| true).unwrap();
    file(home, "mmproj.gguf", &draft.seeded(1).unwrap())
}

/// Returns the colors of a test image.
fn pixels(side: usize, seed: usize) -> Vec<u8> {
    (0..3 * side * side)
        .map(|i| (i * (7 + seed) / 5 + seed) as u8)
        .collect()
}

/// Writes a BMP file of a square image.
fn bitmap(home: &Home, name: &str, side: usize, seed: usize) -> String {
    let row = (3 * side).next_multiple_of(4);
    let mut bytes = vec![0; 54 + row * side];
    bytes[..2].copy_from_slice(b"BM");
    let length = bytes.len() as u32;
    for (at, number) in [(2, length), (10, 54), (14, 40), (18, side as u32), (22, side as u32)] {
        bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
    }
    (bytes[26], bytes[28]) = (1, 24);
    let rgb = pixels(side, seed);
    for (y, line) in rgb.chunks_exact(3 * side).enumerate() {
        // The last line comes first, and blue comes before red.
        let start = 54 + (side - 1 - y) * row;
        for (x, color) in line.chunks_exact(3).enumerate() {
            bytes[start + 3 * x..][..3].copy_from_slice(&[color[2], color[1], color[0]]);
        }
    }
    file(home, name, &bytes)
}

/// Runs `llama run` on a prompt with these images.
fn asked(home: &Home, model: &str, mmproj: &str, images: &str) -> Ended {
    run(
        home,
        &[
            "run",
            "-m",
            model,
            "--mmproj",
            mmproj,
            "--image",
            images,
            "-p",
            "what",
            "-n",
            "8",
            "--temp",
            "0",
            "-ngl",
            "0",
            "-c",
            "128",
            "--verbose-prompt",
        ],
    )
}

#[test]
fn images_are_part_of_the_prompt() {
    let home = Home::new();
    let (model, mmproj) = (language_model(&home, &AROUND), projector(&home, N_EMBD));
    let (one, other) = (bitmap(&home, "1.bmp", SIDE, 0), bitmap(&home, "2.bmp", 31, 9));
    let first = asked(&home, &model, &mmproj, &one);
    assert_eq!(first.status, 0, "{}", first.err);
    assert_eq!(first.err.matches("row of an image").count(), 16, "{}", first.err);
    assert_eq!(
        first.err.matches("<fake_token_around_image>").count(),
        2,
        "{}",
        first.err
    );
    assert_eq!(asked(&home, &model, &mmproj, &one).out, first.out);
    let both = asked(&home, &model, &mmproj, &format!("{other},{one}"));
    assert_eq!(both.err.matches("row of an image").count(), 32, "{}", both.err);
    assert_ne!(both.out, first.out);
}

#[test]
fn projectors_that_do_not_fit_are_refused() {
    let home = Home::new();
    let image = bitmap(&home, "1.bmp", SIDE, 0);
    let (model, mmproj) = (language_model(&home, &AROUND), projector(&home, N_EMBD));
    let err = |model: &str, mmproj: &str, image: &str| {
        let ran = asked(&home, model, mmproj, image);
        assert_eq!(ran.status, 1, "{}", ran.err);
        ran.err
    };
    let narrow = projector(&home, 64.0);
    let text = err(&model, &narrow, &image);
    assert!(
        text.contains("rows have 64 values, but the embeddings of the language model have 256"),
        "{text}"
    );
    let mmproj_again = projector(&home, N_EMBD);
    assert_eq!(mmproj, mmproj_again);
    let text = err(&language_model(&home, &AROUND[1..]), &mmproj, &image);
    assert!(text.contains("no token \"<fake_token_around_image>\""), "{text}");
    let text = err(&home.model("gpt2-dense", None), &mmproj, &image);
    assert!(text.contains("architecture gpt2 takes no images"), "{text}");
    let model = language_model(&home, &AROUND);
    let text = err(&model, &model, &image);
    assert!(text.contains("is a model, not a multimodal projector"), "{text}");
    let text = err(&model, &mmproj, &mmproj);
    assert!(text.contains("mmproj.gguf: ") && text.contains("PNG, JPEG"), "{text}");
    let without = run(&home, &["run", "-m", &model, "--image", &image, "-p", "what"]);
    assert!(
        without.status == 2 && without.err.contains("--mmproj"),
        "{}",
        without.err
    );
}

#[test]
fn encode_writes_rows_of_the_encoder() {
    let home = Home::new();
    let (mmproj, image) = (projector(&home, 64.0), bitmap(&home, "1.bmp", SIDE, 3));
    let rows = home.path("rows");
    let out = rows.to_str().unwrap();
    let ran = run(
        &home,
        &[
            "encode",
            &image,
            "--mmproj",
            &mmproj,
            "-o",
            out,
            "--precision",
            "exact",
            "-ngl",
            "0",
        ],
    );
    assert!(
        ran.status == 0 && ran.out.contains("16 rows of 64 values"),
        "{}{}",
        ran.out,
        ran.err
    );
    let written = Logits::read(&rows).unwrap();
    let params = tests::exact();
    let model = Model::load(Path::new(&mmproj), archs::ENCODERS, &params.load).unwrap();
    let mut encoder = MediaEncoder::new(model.into(), &params.context).unwrap();
    let expected = encoder.encode(SIDE, SIDE, &pixels(SIDE, 3)).unwrap();
    assert!(written.nmse(expected.rows()) < 1e-12);
}

#[test]
fn arch_and_inspect_know_encoders() {
    let home = Home::new();
    let list = run(&home, &["arch", "list"]).out;
    assert!(
        list.contains("encoders/gemma3 ") && list.contains("encoders/idefics3 "),
        "{list}"
    );
    let shown = run(&home, &["arch", "encoders/gemma3"]).out;
    assert!(shown.contains("text: \"\\n\\n<start_of_image>\", image, "), "{shown}");
    assert!(shown.contains("clip.vision.projector.scale_factor"), "{shown}");
    let drawn = run(&home, &["arch", "encoders/gemma3", "--draw", "mermaid"]).out;
    assert!(
        drawn.contains("patches<br/>[3 * patch_size^2, T]") || drawn.contains("patches<br/>"),
        "{drawn}"
    );
    let declaration = root().join("archs/encoders/idefics3.rs");
    let checked = run(&home, &["arch", "check", "--file", declaration.to_str().unwrap()]);
    assert!(checked.out.contains("no errors"), "{}", checked.out);
    let directory = home.path("seeded");
    let seeded = run(
        &home,
        &["arch", "seed", "encoders/gemma3", "-o", directory.to_str().unwrap()],
    );
    assert!(
        seeded.out.contains("mmproj-gemma3.gguf: "),
        "{}{}",
        seeded.out,
        seeded.err
    );
    let written = directory.join("mmproj-gemma3.gguf");
    let inspected = run(&home, &["inspect", written.to_str().unwrap()]).out;
    assert!(inspected.contains("encoder       gemma3"), "{inspected}");
    assert!(
        inspected.contains("112 x 112 pixels, 64 patches, 16 rows of 64 values"),
        "{inspected}"
    );
    assert!(
        inspected.contains("matches: every tensor is declared and present"),
        "{inspected}"
    );
}
