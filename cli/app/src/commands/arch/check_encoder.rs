//! `llama arch check FILE.rs` for encoders: encodes an image or audio with the test model of the declaration.

use std::io::Write;
use std::path::PathBuf;
use std::slice::from_ref;
use std::sync::Arc;

use engine::conformance::{CheckParams, Draft};
use engine::context::{ContextParams, MediaRows};
use engine::finite::check_finite;
use engine::gguf::GgufFile;
use engine::model::{LoadParams, Medium, Model, Registered};
use llama::parts::{ENCODERS, encode_medium};

use crate::commands::stdout;
use crate::failure::{Failure, Outcome};
use crate::format;

/// Width and height of the test image in pixels.
const IMAGE: [u32; 2] = [96, 64];
/// Samples per second of the test audio, which lasts one second.
const RATE: u32 = 16_000;

/// Checks the test models of encoders, with seeded weights. Fails if a value is not finite, or depends on the number of
/// threads.
pub fn run(encoders: &[Registered], params: &CheckParams) -> Outcome {
    let mut outcome = Ok(());
    for declared in encoders {
        match check(declared, params) {
            Err(Failure::Reported) => outcome = Err(Failure::Reported),
            other => other?,
        }
    }
    outcome
}

fn check(declared: &Registered, params: &CheckParams) -> Outcome {
    let name = declared.arch.name;
    let draft = Draft::of_declaration(declared.arch, from_ref(declared), true)?;
    let path = PathBuf::from(format!("mmproj-{name}.gguf"));
    let load = LoadParams {
        arch: None,
        archs: vec![*declared],
        ..params.load.clone()
    };
    let file = GgufFile::from_bytes(&path, &draft.seeded(params.seed)?)?;
    let model = Arc::new(Model::from_file(file, ENCODERS, &load)?);
    let (shown, medium) = match declared.arch.media.map(|media| media.medium) {
        Some(Medium::Audio) => ("a sound of 1 s".to_owned(), sound()),
        _ => (format!("an image of {} × {} pixels", IMAGE[0], IMAGE[1]), image()),
    };
    let encoded = |n_threads: usize| -> Outcome<Arc<MediaRows>> {
        let context = ContextParams {
            n_threads,
            n_threads_batch: n_threads,
            ..params.context.clone()
        };
        let failed = |e| Failure::new(format_args!("{}: cannot encode {shown}: {e}", path.display()));
        encode_medium(model.clone(), &context, &medium).map_err(failed)
    };
    let (rows, again) = (encoded(1)?, encoded(2)?);
    let finite = check_finite(rows.rows()).map_err(|e| e.to_string());
    let equal = (rows.rows() == again.rows())
        .then_some(())
        .ok_or_else(|| "the rows differ".to_owned());
    let (n, width) = (format::plural(rows.len(), "row"), format::plural(rows.width(), "value"));
    let mut out = stdout();
    writeln!(
        out,
        "{}: encoder {name}, {}\n\nself-check with {shown}: {n} of {width}",
        path.display(),
        format::plural(model.tensors().len(), "tensor")
    )?;
    for (claim, result) in [
        ("all values are finite", &finite),
        ("the number of threads does not change rows", &equal),
    ] {
        let verdict = match result {
            Ok(()) => "ok".to_owned(),
            Err(why) => format!("FAIL  {why}"),
        };
        writeln!(out, "  {claim:<42}  {verdict}")?;
    }
    out.flush()?;
    match (finite, equal) {
        (Ok(()), Ok(())) => Ok(()),
        _ => Err(Failure::Reported),
    }
}

/// Returns a BMP file with colors that change along both axes.
fn image() -> Vec<u8> {
    let [width, height] = IMAGE;
    let mut file = b"BM".to_vec();
    let header = [0, 0, 54, 40, width, height, 1 | 24 << 16, 0, 0, 0, 0, 0, 0];
    file.extend(header.iter().flat_map(|word| word.to_le_bytes()));
    // Rows of 96 pixels have no padding.
    let pixel = |i: u32| [i % width * 2, i / width * 3, (i * 7) % 256].map(|color| color as u8);
    file.extend((0..width * height).flat_map(pixel));
    file
}

/// Returns a WAV file with a rising tone.
fn sound() -> Vec<u8> {
    let mut file = Vec::new();
    let words = |file: &mut Vec<u8>, list: &[u32]| file.extend(list.iter().flat_map(|word| word.to_le_bytes()));
    file.extend(b"RIFF");
    words(&mut file, &[36 + 2 * RATE]);
    file.extend(b"WAVEfmt ");
    // Format: integers, one channel, 16 bits per sample.
    words(&mut file, &[16, 1 | 1 << 16, RATE, 2 * RATE, 2 | 16 << 16]);
    file.extend(b"data");
    words(&mut file, &[2 * RATE]);
    let sample = |i: u32| {
        let t = f64::from(i) / f64::from(RATE);
        let tone = (std::f64::consts::TAU * (200.0 + 400.0 * t) * t).sin();
        (tone * 8000.0) as i16
    };
    file.extend((0..RATE).flat_map(|i| sample(i).to_le_bytes()));
    file
}
