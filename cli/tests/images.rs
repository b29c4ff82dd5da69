//! Images on the command line: `llama run --image`, `llama encode`, and encoders in `llama arch` and `inspect`.

use std::path::Path;

use engine::context::MediaEncoder;
use engine::gguf::logits::Logits;
use engine::model::Model;
use tests::images::{AROUND_IMAGE, IMAGE_SIDE, N_EMBD, pixels, vision_model};

use crate::common::{Ended, Home, ended, ended_with_input, root};

/// Chat template that writes each message on its own line.
const TEMPLATE: &str = "{% for m in messages %}{{ m.content }}\n{% endfor %}";

fn run(home: &Home, args: &[&str]) -> Ended {
    ended(home.llama(args))
}

/// Writes a file and returns its path.
fn file(home: &Home, name: &str, bytes: &[u8]) -> String {
    let path = home.path(name);
    std::fs::write(&path, bytes).unwrap();
    path.into_os_string().into_string().unwrap()
}

/// Writes a language model with these control tokens.
fn language_model(home: &Home, control: &[&str]) -> String {
    file(home, "model.gguf", &vision_model(Some(TEMPLATE), control))
}

/// Writes a projector with rows of this width.
fn projector(home: &Home, n_out: usize) -> String {
    file(home, "mmproj.gguf", &tests::images::projector(n_out))
}

/// Writes a BMP file of a square image.
fn bitmap(home: &Home, name: &str, side: usize, seed: usize) -> String {
    file(home, name, &tests::images::bitmap(side, seed))
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
    let (model, mmproj) = (language_model(&home, &AROUND_IMAGE), projector(&home, N_EMBD));
    let (one, other) = (bitmap(&home, "1.bmp", IMAGE_SIDE, 0), bitmap(&home, "2.bmp", 31, 9));
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
fn projector_next_to_model_is_found() {
    let home = Home::new();
    let (model, image) = (
        language_model(&home, &AROUND_IMAGE),
        bitmap(&home, "1.bmp", IMAGE_SIDE, 0),
    );
    let line = [
        "run", "-m", &model, "--image", &image, "-p", "what", "-n", "8", "--temp", "0", "-ngl", "0", "-c", "128",
    ];
    let without = run(&home, &line);
    assert!(
        without.status == 1 && without.err.contains("mmproj*.gguf"),
        "{}",
        without.err
    );
    let mmproj = projector(&home, N_EMBD);
    let found = run(&home, &line);
    assert_eq!(found.status, 0, "{}", found.err);
    assert_eq!(found.out, asked(&home, &model, &mmproj, &image).out);
    // A projector of another model is not used. With several projectors, none is used.
    projector(&home, 64);
    let other = run(&home, &line);
    assert!(
        other.status == 1 && other.err.contains("rows have 64 values") && other.err.contains("is not used"),
        "{}",
        other.err
    );
    std::fs::copy(&mmproj, home.path("mmproj-2.gguf")).unwrap();
    let several = run(&home, &line);
    assert!(
        several.status == 1 && several.err.contains("2 projectors"),
        "{}",
        several.err
    );
}

#[test]
fn mismatched_projectors_are_rejected() {
    let home = Home::new();
    let image = bitmap(&home, "1.bmp", IMAGE_SIDE, 0);
    let (model, mmproj) = (language_model(&home, &AROUND_IMAGE), projector(&home, N_EMBD));
    let err = |model: &str, mmproj: &str, image: &str| {
        let ran = asked(&home, model, mmproj, image);
        assert_eq!(ran.status, 1, "{}", ran.err);
        ran.err
    };
    let narrow = projector(&home, 64);
    let text = err(&model, &narrow, &image);
    assert!(
        text.contains("rows have 64 values, but the language model takes rows of 256"),
        "{text}"
    );
    let mmproj_again = projector(&home, N_EMBD);
    assert_eq!(mmproj, mmproj_again);
    let text = err(&language_model(&home, &AROUND_IMAGE[1..]), &mmproj, &image);
    assert!(text.contains("no token \"<fake_token_around_image>\""), "{text}");
    let text = err(&home.model("gpt2-dense", None), &mmproj, &image);
    assert!(text.contains("architecture gpt2 takes no images"), "{text}");
    let model = language_model(&home, &AROUND_IMAGE);
    let text = err(&model, &model, &image);
    assert!(text.contains("is a model, not a multimodal projector"), "{text}");
    let text = err(&model, &mmproj, &mmproj);
    assert!(text.contains("mmproj.gguf: ") && text.contains("PNG, JPEG"), "{text}");
    let line = [
        "run",
        "-m",
        &model,
        "--image",
        &image,
        "-p",
        "what",
        "-ngl",
        "0",
        "--no-mmproj",
    ];
    let without = run(&home, &line);
    assert!(
        without.status == 1 && without.err.contains("--mmproj"),
        "{}",
        without.err
    );
}

#[test]
fn encode_writes_rows_of_the_encoder() {
    let home = Home::new();
    let (mmproj, image) = (projector(&home, 64), bitmap(&home, "1.bmp", IMAGE_SIDE, 3));
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
    let expected = encoder.encode(IMAGE_SIDE, IMAGE_SIDE, &pixels(IMAGE_SIDE, 3)).unwrap();
    assert!(written.nmse(expected.rows()) < 1e-12);
}

#[test]
fn declared_encoder_gives_rows_of_built_in_encoder() {
    let home = Home::new();
    let (model, mmproj) = (language_model(&home, &AROUND_IMAGE), projector(&home, N_EMBD));
    let image = bitmap(&home, "1.bmp", IMAGE_SIDE, 3);
    let text = std::fs::read_to_string(root().join("archs/encoders/idefics3.rs")).unwrap();
    let declaration = file(
        &home,
        "my_encoder.rs",
        text.replace("\"idefics3\"", "\"mine\"").as_bytes(),
    );
    let rows = |args: &[&str]| {
        let out = home.path("rows");
        let fixed = [
            "encode",
            &image,
            "--mmproj",
            &mmproj,
            "-ngl",
            "0",
            "-o",
            out.to_str().unwrap(),
        ];
        ended(home.llama(&[&fixed[..], args].concat())).succeeds();
        Logits::read(&out).unwrap().values().to_vec()
    };
    assert_eq!(rows(&["--arch", &declaration]), rows(&[]));
    let answer = |args: &[&str]| {
        let fixed = [
            "run", &model, "-p", "what", "--image", &image, "-n", "8", "--temp", "0", "-ngl", "0", "-c", "128",
        ];
        let ran = ended(home.llama(&[&fixed[..], &["--mmproj", &mmproj], args].concat()));
        ran.succeeds().to_owned()
    };
    assert_eq!(answer(&["--mmproj-arch", &declaration]), answer(&[]));
    // The kinds of declarations must match those of the files.
    let fails = |args: &[&str], part: &str| {
        let ran = run(&home, args);
        assert!(ran.status == 1 && ran.err.contains(part), "{part:?} in {}", ran.err);
    };
    fails(
        &["run", &model, "abc", "--no-mmproj", "--arch", &declaration],
        "the file is a language model, but `mine` declares the projector of an encoder",
    );
    let llama = root().join("archs/llama.rs");
    let llama = llama.to_str().unwrap();
    fails(
        &[
            "run",
            &model,
            "abc",
            "--image",
            &image,
            "--mmproj",
            &mmproj,
            "--mmproj-arch",
            llama,
        ],
        "llama.rs declares a language model; pass it with --arch",
    );
    fails(
        &["encode", &image, "--mmproj", &mmproj, "-o", "rows", "--arch", llama],
        "the file is the projector of an encoder, but `llama` declares a language model",
    );
}

#[test]
fn encoders_in_directory_of_declarations_are_found() {
    let home = Home::new();
    let text = std::fs::read_to_string(root().join("archs/encoders/idefics3.rs")).unwrap();
    std::fs::create_dir_all(home.path("archs")).unwrap();
    let text = text.replace("\"idefics3\"", "\"mine\"");
    let declaration = file(&home, "archs/my_encoder.rs", text.as_bytes());
    // A language model of the same name is another declaration.
    let other = "arch_macros::arch! {\n    name: \"mine\";\n    like: \"llama\";\n}\n";
    file(&home, "archs/a_model.rs", other.as_bytes());
    let checked = ended(home.llama(&["arch", "check", &declaration]));
    let report = checked.succeeds();
    for part in [
        "mmproj-mine.gguf: encoder mine",
        "self-check with an image of 96 × 64 pixels",
        "all values are finite                       ok",
        "the number of threads does not change rows  ok",
    ] {
        assert!(report.contains(part), "{part:?} in {report}");
    }
    let out = home.path("seeds");
    ended(home.llama(&["arch", "seed", &declaration, "-o", out.to_str().unwrap()])).succeeds();
    let mmproj = out.join("mmproj-mine.gguf");
    let with_directory = |args: &[&str]| {
        let mut command = home.llama(args);
        command.env("LLAMA_ARCHS", home.path("archs"));
        ended(command).succeeds().to_owned()
    };
    let inspected = with_directory(&["inspect", mmproj.to_str().unwrap()]);
    assert!(inspected.contains("matches: every tensor"), "{inspected}");
    let shown = with_directory(&["arch", "list"]);
    assert!(shown.contains("encoders/mine ") && shown.contains("\nmine "), "{shown}");
    let image = bitmap(&home, "1.bmp", IMAGE_SIDE, 3);
    let encoded = with_directory(&[
        "encode",
        &image,
        "--mmproj",
        mmproj.to_str().unwrap(),
        "-ngl",
        "0",
        "-o",
        home.path("rows").to_str().unwrap(),
    ]);
    assert!(encoded.contains("rows of 64 values"), "{encoded}");
}

#[test]
fn directory_named_encoders_has_built_in_fragments() {
    let home = Home::new();
    std::fs::create_dir_all(home.path("encoders/fragments")).unwrap();
    let text = std::fs::read_to_string(root().join("archs/encoders/idefics3.rs")).unwrap();
    let declaration = file(
        &home,
        "encoders/mine.rs",
        text.replace("\"idefics3\"", "\"mine\"").as_bytes(),
    );
    ended(home.llama(&["arch", "check", &declaration])).succeeds();
    let fragment = std::fs::read_to_string(root().join("archs/encoders/fragments/vit_class.rs")).unwrap();
    let fragment = file(&home, "encoders/fragments/my_class.rs", fragment.as_bytes());
    ended(home.llama(&["arch", "check", "--message-format", "json", &fragment])).succeeds();
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
    let bare = run(&home, &["arch", "idefics3"]).out;
    assert_eq!(bare, run(&home, &["arch", "encoders/idefics3"]).out);
    assert!(!bare.is_empty());
    let of_both = run(&home, &["arch", "gemma3"]).out;
    assert!(of_both.contains("token_embd.weight"), "{of_both}");
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

/// The number of rows includes the rows of tiles and the learned rows of the file.
#[test]
fn inspect_counts_rows_of_tiles() {
    let home = Home::new();
    let directory = home.path("seeded");
    for (encoder, expected) in [
        ("deepseekocr", "64 x 64 pixels, 256 patches, up to 69 rows of 64 values"),
        ("step3vl", "64 x 64 pixels, 256 patches, up to 1825 rows of 64 values"),
    ] {
        let seeded = run(
            &home,
            &[
                "arch",
                "seed",
                &format!("encoders/{encoder}"),
                "-o",
                directory.to_str().unwrap(),
            ],
        );
        assert_eq!(seeded.status, 0, "{}", seeded.err);
        let written = directory.join(format!("mmproj-{encoder}.gguf"));
        let inspected = run(&home, &["inspect", written.to_str().unwrap()]).out;
        assert!(inspected.contains(expected), "{inspected}");
    }
}

#[test]
fn dropped_paths_are_attached_in_chats() {
    let home = Home::new();
    let (model, mmproj) = (language_model(&home, &AROUND_IMAGE), projector(&home, N_EMBD));
    let (image, text) = (bitmap(&home, "a b.bmp", IMAGE_SIDE, 0), file(&home, "c.txt", b"x"));
    let args = [
        "run",
        "-m",
        &model,
        "--mmproj",
        &mmproj,
        "--simple-io",
        "-n",
        "4",
        "--temp",
        "0",
        "-ngl",
        "0",
        "-c",
        "256",
    ];
    let chat = |input: &str| ended_with_input(home.llama(&args), input);
    let dropped = chat(&format!("'{image}'\n/tokens\nwhat\n"));
    let attached = format!("{image}: 16 rows will be put before the next message.");
    assert!(
        dropped.status == 0 && dropped.err.contains(&attached),
        "{}",
        dropped.err
    );
    let answer = |ended: &Ended| ended.out.replace("> ", "");
    assert_eq!(answer(&dropped), answer(&chat(&format!("/image {image}\nwhat\n"))));
    assert_eq!(answer(&dropped), answer(&chat(&format!("what '{image}'\n"))));
    let plain = chat(&format!("{text} what\n"));
    assert!(plain.status == 0 && !plain.err.contains("will be put"), "{}", plain.err);
}

#[test]
fn bench_measures_images() {
    let home = Home::new();
    let mmproj = projector(&home, 64);
    let bench = |more: &[&str]| {
        let base = ["bench", "-m", &mmproj, "-ngl", "0", "-t", "1", "-r", "2"];
        run(&home, &[&base, more].concat())
    };
    let json = bench(&["--image", "112x112,300x20", "-o", "json"]);
    let rows: Vec<serde_json::Value> = serde_json::from_str(&json.out).unwrap_or_else(|e| panic!("{e}: {}", json.err));
    for (row, size) in rows.iter().zip(["112x112", "300x20"]) {
        assert_eq!(
            (&row["image"], &row["resized"], &row["n_rows"]),
            (&size.into(), &"112x112".into(), &16.into())
        );
        assert!(row["median_ms"].as_f64().unwrap() > 0.0 && row["samples_ms"].as_array().unwrap().len() == 2);
    }
    assert_eq!(rows.len(), 2);
    let table = bench(&["--image", "50x60"]);
    assert!(
        table.out.contains("idefics3") && table.out.contains("50x60"),
        "{}{}",
        table.out,
        table.err
    );
    let json = bench(&["--image", "50x60", "--profile", "-o", "json"]);
    let rows: Vec<serde_json::Value> = serde_json::from_str(&json.out).unwrap_or_else(|e| panic!("{e}: {}", json.err));
    let parts = rows[0]["profile"].as_array().unwrap();
    let total: f64 = parts.iter().map(|part| part["share"].as_f64().unwrap()).sum();
    assert!((total - 1.0).abs() < 1e-6 && parts.len() > 3, "{parts:?}");
    let table = bench(&["--image", "50x60", "--profile"]);
    assert!(table.out.contains("    mul_mat "), "{}{}", table.out, table.err);
    for (args, reason) in [
        (&["--image", "50"][..], "expected WIDTHxHEIGHT"),
        (&["--image", "50x60", "-o", "csv"], "table and json"),
    ] {
        let refused = bench(args);
        assert!(refused.status != 0 && refused.err.contains(reason), "{}", refused.err);
    }
}

#[test]
fn embed_compares_images_and_texts() {
    let home = Home::new();
    let (model, mmproj) = (language_model(&home, &AROUND_IMAGE), projector(&home, N_EMBD));
    let (one, other) = (
        bitmap(&home, "1.bmp", IMAGE_SIDE, 0),
        bitmap(&home, "2.bmp", IMAGE_SIDE, 5),
    );
    let embed = |more: &[&str]| {
        let base = ["embed", "-m", &model, "-ngl", "0", "--format", "array"];
        let ran = run(&home, &[&base, more].concat());
        let parsed: Result<Vec<Vec<f64>>, _> = serde_json::from_str(&ran.out);
        parsed.unwrap_or_else(|e| panic!("{e}: {}{}", ran.out, ran.err))
    };
    let images = format!("{one},{other},{one}");
    let all = embed(&["-p", "what", "--mmproj", &mmproj, "--image", &images]);
    assert_eq!(all.len(), 4);
    let distance = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>();
    assert!(distance(&all[0], &embed(&["-p", "what"])[0]) < 1e-8);
    assert!(distance(&all[1], &all[3]) < 1e-8 && distance(&all[1], &all[2]) > 1e-6);
    // The projector next to the model is used, and no text is needed.
    assert!(distance(&embed(&["--image", &other])[0], &all[2]) < 1e-8);
    let without = run(&home, &["embed", "-m", &model, "--image", &one, "--no-mmproj"]);
    assert!(
        without.status == 1 && without.err.contains("--mmproj"),
        "{}",
        without.err
    );
}

#[test]
fn plans_count_the_projector_next_to_a_model() {
    let home = Home::new();
    let (model, mmproj) = (language_model(&home, &AROUND_IMAGE), projector(&home, N_EMBD));
    let plan = |args: &[&str]| -> serde_json::Value {
        let ran = run(&home, args);
        serde_json::from_str(&ran.out).unwrap_or_else(|e| panic!("{e}: {}{}", ran.out, ran.err))
    };
    let host =
        |report: &serde_json::Value| report["memory"].as_array().unwrap().last().unwrap()["needed_bytes"].as_u64();
    let doctor = plan(&["doctor", &model, "--json", "-ngl", "0"])["model"].clone();
    let summary = &doctor["projector"];
    assert_eq!(
        (&summary["file"], &summary["encoder"], &summary["rows"]),
        (&mmproj.as_str().into(), &"idefics3".into(), &16.into())
    );
    let without = plan(&["doctor", &model, "--json", "-ngl", "0", "--no-mmproj"])["model"].clone();
    assert!(without["projector"].is_null());
    let [weights, compute] = ["weight_bytes", "compute_bytes"].map(|name| summary[name].as_u64().unwrap());
    assert!(weights > 0 && compute > 0);
    assert_eq!(host(&doctor), host(&without).map(|bytes| bytes + weights + compute));
    let planned = plan(&["inspect", &model, "--plan", "--json", "-ngl", "0", "--mmproj", &mmproj]);
    assert_eq!(planned["projector"]["weight_bytes"], summary["weight_bytes"]);
    let text = run(&home, &["inspect", &model, "--plan", "-ngl", "0"]);
    assert!(
        text.out.contains("112 x 112 pixels, 64 patches, 16 rows"),
        "{}{}",
        text.out,
        text.err
    );
    let wrong = run(&home, &["inspect", &model, "--plan", "--mmproj", &model]);
    assert!(wrong.status == 1 && wrong.err.contains("model.gguf"), "{}", wrong.err);
}
