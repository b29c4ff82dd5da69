//! Audio on the command line: `llama run --audio` and `llama encode`.

use engine::gguf::logits::Logits;
use tests::images::{IMAGE_ROWS, IMAGE_SIDE, N_EMBD, bitmap, projector_of, projector_of_both};
use tests::speech::wav;

use crate::common::{Ended, Home, ended};

/// Chat template with a turn per message.
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

/// Writes the projector of an encoder, with rows of `n_out` values.
fn projector(home: &Home, encoder: &str, n_out: usize) -> String {
    file(home, &format!("{encoder}.gguf"), &projector_of(encoder, n_out))
}

/// Writes half a second of a tone, 8,000 samples per second.
fn tone(home: &Home, name: &str, period: usize) -> String {
    let sample = |i: usize| (i % period * 20_000 / period) as i16 - 10_000;
    let samples: Vec<i16> = (0..4000).map(sample).collect();
    file(home, name, &wav(&samples, 8000))
}

#[test]
fn audio_is_part_of_the_prompt() {
    let home = Home::new();
    let model = file(&home, "model.gguf", &tests::text_model("llama", Some(TEMPLATE)));
    let mmproj = projector(&home, "ultravox", N_EMBD);
    let (one, other) = (tone(&home, "1.wav", 40), tone(&home, "2.wav", 23));
    let asked = |mmproj: &str, option: &str, files: &str| {
        let args = [
            "run", "-m", &model, "--mmproj", mmproj, option, files, "-p", "what", "-n", "8", "--temp", "0", "-ngl",
            "0", "-c", "128", "-v",
        ];
        run(&home, &args)
    };
    let first = asked(&mmproj, "--audio", &one);
    assert_eq!(first.status, 0, "{}", first.err);
    assert_eq!(asked(&mmproj, "--audio", &one).out, first.out);
    let both = asked(&mmproj, "--audio", &format!("{other},{one}"));
    assert!(both.status == 0 && both.out != first.out, "{}", both.err);
    let wrong = asked(&mmproj, "--image", &one);
    assert!(
        wrong.err.contains("the projector encodes audio, not images"),
        "{}",
        wrong.err
    );
    let damaged = asked(&mmproj, "--audio", &mmproj);
    assert!(damaged.err.contains("WAV, MP3, FLAC, OGG Vorbis"), "{}", damaged.err);
    let voxtral = projector(&home, "voxtral", N_EMBD);
    let wrong = asked(&voxtral, "--audio", &one);
    assert!(wrong.err.contains("no token \"[BEGIN_AUDIO]\""), "{}", wrong.err);
}

#[test]
fn encoder_follows_from_the_file() {
    let home = Home::new();
    let mmproj = file(
        &home,
        "mmproj.gguf",
        &projector_of_both("idefics3", "ultravox", "ultravox", N_EMBD),
    );
    let (image, sound) = (file(&home, "1.bmp", &bitmap(IMAGE_SIDE, 0)), tone(&home, "1.wav", 40));
    let rows = home.path("rows");
    for (medium, n_rows) in [(&image, IMAGE_ROWS), (&sound, 7)] {
        let out = rows.to_str().unwrap();
        let ran = run(&home, &["encode", medium, "--mmproj", &mmproj, "-o", out, "-ngl", "0"]);
        assert!(
            ran.out.contains(&format!("{n_rows} rows of {N_EMBD} values")),
            "{}{}",
            ran.out,
            ran.err
        );
    }
    let inspected = run(&home, &["inspect", &mmproj]).out;
    for line in ["encoder       idefics3", "encoder       ultravox", "image  ", "audio  "] {
        assert!(inspected.contains(line), "{inspected}");
    }
}

#[test]
fn encode_and_inspect_count_rows_of_audio() {
    let home = Home::new();
    let sound = tone(&home, "1.wav", 40);
    for (encoder, n_rows) in [("qwen2a", 12), ("voxtral", 10), ("ultravox", 7)] {
        let (mmproj, rows) = (projector(&home, encoder, 64), home.path("rows"));
        let out = rows.to_str().unwrap();
        let ran = run(&home, &["encode", &sound, "--mmproj", &mmproj, "-o", out, "-ngl", "0"]);
        assert!(
            ran.out.contains(&format!("{n_rows} rows of 64 values")),
            "{}{}",
            ran.out,
            ran.err
        );
        assert_eq!(Logits::read(&rows).unwrap().tokens().len(), n_rows, "{encoder}");
        let inspected = run(&home, &["inspect", &mmproj]).out;
        assert!(
            inspected.contains("16000 Hz, 16 mel filters, 0.8 s at a time"),
            "{inspected}"
        );
    }
}
