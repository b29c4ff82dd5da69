//! Results of Pillow, libsndfile, and transformers, recorded by `tests/tools/record_pixels.py`.

mod common;

use common::{Reader, audio, crc32, images, noise, recorded, signal};
use media::Limits;
use media::audio::{MelKind, mel, mel_frames, normalize};
use media::image::{Filter, RgbImage, resize};

const FILTERS: [Filter; 3] = [Filter::Bilinear, Filter::Bicubic, Filter::Lanczos];

/// Returns sizes before and after.
fn sizes(case: u64) -> [u32; 4] {
    let bytes: Vec<u32> = noise(case, 8).map(u32::from).collect();
    let limit = if case.is_multiple_of(5) { 12 } else { 160 };
    let [w, h, tw, th] = [0, 2, 4, 6].map(|i| 1 + (bytes[i] * 256 + bytes[i + 1]) % limit);
    if case.is_multiple_of(7) {
        [w * 9, h, tw, (th / 40).max(1)]
    } else {
        [w, h, tw, th]
    }
}

fn check_resized(step: usize) {
    let digests = recorded("resized.bin");
    for (case, digest) in digests.chunks_exact(4).enumerate().step_by(step) {
        let number = case as u64;
        let [width, height, to_width, to_height] = sizes(number);
        let bytes = noise(number + 20_000, (width * height * 3) as usize);
        let data = if case % 3 == 0 {
            bytes.map(|b| if b > 127 { 255 } else { 0 }).collect()
        } else {
            bytes.collect()
        };
        let filter = FILTERS[if case % 2 == 1 { case % 3 } else { case / 2 % 3 }];
        let resized = resize(&RgbImage { width, height, data }, to_width, to_height, filter);
        assert_eq!((resized.width, resized.height), (to_width, to_height));
        let expected = u32::from_le_bytes(digest.try_into().unwrap());
        let sizes = format!("{filter:?} {width} x {height} to {to_width} x {to_height}");
        assert_eq!(crc32(&resized.data), expected, "case {case}: {sizes}");
    }
}

#[test]
fn resize_equals_pillow_byte_for_byte() {
    check_resized(7);
}

#[test]
#[ignore = "takes ten seconds: all 10,000 recorded sizes"]
fn resize_equals_pillow_for_all_recorded_sizes() {
    check_resized(1);
}

#[test]
fn decoded_images_equal_those_of_pillow() {
    let data = recorded("images.bin");
    let (mut n, mut failures) = (0, Vec::new());
    for case in images(&data) {
        n += 1;
        let image = match media::image::decode(case.encoded, &Limits::default()) {
            Ok(image) => image,
            Err(e) => {
                failures.push(format!("{}: {e}", case.name));
                continue;
            }
        };
        assert_eq!((image.width, image.height), case.size, "{}", case.name);
        assert_eq!(
            media::image::size(case.encoded, &Limits::default()),
            Ok(case.size),
            "{}",
            case.name
        );
        if case.name.starts_with("jpeg") {
            let errors = image.data.iter().zip(case.pixels).map(|(a, b)| a.abs_diff(*b));
            let most = errors.max().unwrap_or(0);
            if most > 0 || case.pixels.len() != image.data.len() {
                failures.push(format!("{}: pixels differ by {most}", case.name));
            }
        } else if crc32(&image.data).to_le_bytes() != case.pixels {
            failures.push(format!("{}: pixels differ", case.name));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
    assert!(n > 80, "{n}");
}

#[test]
fn subsampled_jpegs_equal_those_of_pillow_byte_for_byte() {
    let data = recorded("samplings.bin");
    let cases = images(&data);
    for case in &cases {
        let image = media::image::decode(case.encoded, &Limits::default());
        let image = image.unwrap_or_else(|e| panic!("{}: {e}", case.name));
        assert_eq!((image.width, image.height), case.size, "{}", case.name);
        assert_eq!(crc32(&image.data).to_le_bytes(), case.pixels, "{}", case.name);
    }
    assert_eq!(cases.len(), 54);
}

#[test]
fn decoded_audio_equals_that_of_libsndfile() {
    let data = recorded("audio.bin");
    let mut failures = Vec::new();
    for case in audio(&data) {
        let pcm = match media::audio::decode(case.encoded, case.rate, &Limits::default()) {
            Ok(pcm) => pcm,
            Err(e) => {
                failures.push(format!("{}: {e}", case.name));
                continue;
            }
        };
        let tolerance = match &case.name[..3] {
            "mp3" | "ogg" => 2.0,
            // Averages of two channels have half integers.
            _ => 0.5,
        };
        let errors = pcm
            .samples
            .iter()
            .zip(&case.samples)
            .map(|(a, b)| (a * 32768.0 - f32::from(*b)).abs());
        let most = errors.fold(0.0, f32::max);
        let seconds = media::audio::duration(case.encoded, &Limits::default());
        let expected = case.samples.len() as f64 / f64::from(case.rate);
        if pcm.samples.len() != case.samples.len() || most > tolerance || seconds != Ok(expected) {
            let (got, want) = (pcm.samples.len(), case.samples.len());
            failures.push(format!(
                "{}: {got} samples, not {want}, differ by {most}; {seconds:?} s, not {expected}",
                case.name
            ));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn mels_equal_those_of_transformers() {
    let data = recorded("mels.bin");
    let mut reader = Reader(&data);
    let mut n = 0;
    while !reader.0.is_empty() {
        let kinds = [
            MelKind::Whisper,
            MelKind::Conformer,
            MelKind::Gemma3n,
            MelKind::Gemma4,
            MelKind::Granite,
        ];
        let kind = kinds[reader.number(1)];
        let (n_mel, n_samples, n_frames) = (reader.number(2), reader.number(4), reader.number(4));
        let expected = reader.bytes(4 * n_mel * n_frames).chunks_exact(4);
        let computed = mel(&signal(n_samples), kind, n_mel);
        assert_eq!(
            (computed.n_frames, mel_frames(kind, n_samples)),
            (n_frames, n_frames),
            "{kind:?}"
        );
        for (i, (got, want)) in computed.data.iter().zip(expected).enumerate() {
            let want = f32::from_le_bytes(want.try_into().unwrap());
            let error = (got - want).abs();
            assert!(
                error <= 1e-6,
                "{kind:?} {n_samples}, frame {}, filter {}: {got} {want}",
                i / n_mel,
                i % n_mel
            );
        }
        n += 1;
    }
    assert_eq!(n, 8);
}

/// The expected values come from `zero_mean_unit_var_norm` in the feature extractor of Whisper.
#[test]
fn normalized_samples_equal_those_of_transformers() {
    let mut samples = [0.5, -0.25, 0.125, 0.75, 0.0, -0.5];
    normalize(&mut samples);
    let expected = [
        0.934_928_6,
        -0.836_515_1,
        0.049_206_77,
        1.525_409_9,
        -0.246_033_85,
        -1.426_996_3,
    ];
    for (found, expected) in samples.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-6, "{samples:?}");
    }
    let mut silence = [0.25; 2];
    normalize(&mut silence);
    assert_eq!(silence, [0.0; 2]);
    normalize(&mut []);
}
