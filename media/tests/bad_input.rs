//! Damaged, hostile, and oversized media: an error within bounds of time and memory, never a panic.

mod common;

use std::time::{Duration, Instant};

use common::{audio, crc32, images, noise, recorded};
use media::{Format, Limits, MediaError};

fn limit_of<T: std::fmt::Debug>(result: Result<T, MediaError>) -> (String, &'static str, u64, u64) {
    match result {
        Err(MediaError::Limit {
            medium,
            unit,
            actual,
            limit,
        }) => (medium, unit, actual, limit),
        other => panic!("{other:?}"),
    }
}

/// Returns a chunk of a PNG.
fn chunk(kind: &[u8; 4], data: &[u8]) -> Vec<u8> {
    let checked = [kind.as_slice(), data].concat();
    [
        &(data.len() as u32).to_be_bytes()[..],
        &checked,
        &crc32(&checked).to_be_bytes(),
    ]
    .concat()
}

/// Returns a gray PNG whose data is a recorded stream of a different size.
fn png(width: u32, height: u32, data: &[u8]) -> Vec<u8> {
    let header = [&width.to_be_bytes()[..], &height.to_be_bytes(), &[1, 0, 0, 0, 0]].concat();
    let chunks = [chunk(b"IHDR", &header), chunk(b"IDAT", data), chunk(b"IEND", b"")];
    [b"\x89PNG\r\n\x1a\n".as_slice(), &chunks.concat()].concat()
}

#[test]
fn png_of_60000_pixels_a_side_is_rejected_by_header() {
    let bomb = png(60_000, 60_000, &[0; 10_000]);
    let expected = ("PNG image".to_owned(), "pixels on its longer side", 60_000, 16_384);
    assert_eq!(limit_of(media::image::decode(&bomb, &Limits::default())), expected);
    assert_eq!(limit_of(media::image::size(&bomb, &Limits::default())), expected);
    let error = media::image::decode(&bomb, &Limits::default()).unwrap_err().to_string();
    assert_eq!(
        error,
        "the PNG image has 60000 pixels on its longer side; the limit is 16384"
    );
}

#[test]
fn images_of_100000_rows_or_64_megapixels_are_rejected() {
    let strip = png(1, 100_000, &[0; 100]);
    assert_eq!(limit_of(media::image::decode(&strip, &Limits::default())).2, 100_000);
    let wide = png(16_000, 16_000, &[0; 100]);
    let expected = ("PNG image".to_owned(), "pixels", 256_000_000, 64_000_000);
    assert_eq!(limit_of(media::image::decode(&wide, &Limits::default())), expected);
    let empty = png(0, 5, &[0; 100]);
    assert!(matches!(
        media::image::size(&empty, &Limits::default()),
        Err(MediaError::Damaged { .. })
    ));
}

#[test]
fn gif_of_10000_frames_costs_one_frame() {
    let data = recorded("images.bin");
    let gif = images(&data).into_iter().find(|case| case.name == "gif").unwrap();
    let mut bomb = gif.encoded[..gif.encoded.len() - 1].to_vec();
    let palette = 3 << ((bomb[10] & 7) + 1);
    let frame = bomb[13 + palette..].to_vec();
    for _ in 0..10_000 {
        bomb.extend_from_slice(&frame);
    }
    bomb.push(b';');
    let start = Instant::now();
    let image = media::image::decode(&bomb, &Limits::default()).unwrap();
    assert_eq!((image.width, image.height), gif.size);
    assert_eq!(crc32(&image.data).to_le_bytes(), gif.pixels);
    assert!(start.elapsed() < Duration::from_secs(1));
}

#[test]
fn data_above_20_mib_is_rejected_before_format_detection() {
    let mut data = vec![0; (20 << 20) + 1];
    assert_eq!(limit_of(media::image::decode(&data, &Limits::default())).1, "bytes");
    assert_eq!(
        limit_of(media::audio::decode(&data, 16_000, &Limits::default())).0,
        "audio"
    );
    data[..3].copy_from_slice(&[0xff, 0xd8, 0xff]);
    assert_eq!(limit_of(media::image::size(&data, &Limits::default())).0, "JPEG image");
}

#[test]
fn other_media_and_unknown_formats_are_named() {
    let limits = Limits::default();
    let unknown = media::image::decode(b"<svg xmlns='http://www.w3.org/2000/svg'/>", &limits).unwrap_err();
    assert_eq!(
        unknown.to_string(),
        "the data is SVG, not in a known image format (PNG, JPEG, WebP, GIF, BMP)"
    );
    let photo = media::image::decode(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", &limits).unwrap_err();
    assert!(
        photo.to_string().starts_with("the data is HEIC, not in a known"),
        "{photo}"
    );
    let noise = media::audio::decode(b"what", 16_000, &limits).unwrap_err();
    assert_eq!(
        noise.to_string(),
        "the data is not in a known audio format (WAV, MP3, FLAC, OGG Vorbis)"
    );
    let wav = b"RIFF\0\0\0\0WAVEfmt ";
    let audio = media::image::decode(wav, &limits).unwrap_err();
    assert_eq!(
        audio,
        MediaError::WrongMedium {
            expected: "image",
            found: Format::Wav
        }
    );
    let image = media::audio::decode(b"GIF89a", 16_000, &limits).unwrap_err();
    assert_eq!(image.to_string(), "the data is GIF, but an audio file is required");
}

/// Returns a WAV file of silence whose data chunk claims `claimed` bytes.
fn wav(rate: u32, channels: u16, bytes: usize, claimed: u32) -> Vec<u8> {
    let block = channels * 2;
    let format = [
        &1u16.to_le_bytes()[..],
        &channels.to_le_bytes(),
        &rate.to_le_bytes(),
        &(rate.wrapping_mul(u32::from(block))).to_le_bytes(),
        &block.to_le_bytes(),
        &16u16.to_le_bytes(),
    ]
    .concat();
    let data = vec![0; bytes];
    let size = claimed.wrapping_add(36).to_le_bytes();
    [
        b"RIFF".as_slice(),
        &size,
        b"WAVEfmt ",
        &16u32.to_le_bytes(),
        &format,
        b"data",
        &claimed.to_le_bytes(),
        &data,
    ]
    .concat()
}

#[test]
fn audio_beyond_30_minutes_or_192_khz_is_rejected() {
    let limits = Limits::default();
    let long = wav(1000, 1, 1801 * 2000, 1801 * 2000);
    let expected = ("WAV audio".to_owned(), "seconds", 1801, 1800);
    assert_eq!(limit_of(media::audio::decode(&long, 16_000, &limits)), expected);
    assert_eq!(limit_of(media::audio::duration(&long, &limits)), expected);
    let fast = wav(400_000, 1, 1000, 1000);
    assert_eq!(
        limit_of(media::audio::decode(&fast, 16_000, &limits)).1,
        "samples per second"
    );
}

#[test]
fn audio_with_unsupported_codec_names_it() {
    let convert = "is not supported; convert it to 16-bit PCM (ffmpeg -i IN -c:a pcm_s16le OUT.wav)";
    let decode = |bytes: &[u8]| media::audio::decode(bytes, 16_000, &Limits::default()).unwrap_err();
    for (tag, codec) in [
        (0x0002u16, "Microsoft ADPCM (codec 0x0002)"),
        (0x0055, "MP3 (codec 0x0055)"),
        (0x0042, "an unknown codec (0x0042)"),
    ] {
        let mut file = wav(16_000, 1, 1000, 1000);
        file[20..22].copy_from_slice(&tag.to_le_bytes());
        let expected = format!("the WAV audio uses {codec}, which {convert}");
        assert_eq!(decode(&file).to_string(), expected);
        assert_eq!(
            media::audio::duration(&file, &Limits::default())
                .unwrap_err()
                .to_string(),
            expected
        );
    }
    // The first page of a file, with one packet.
    let page = [&b"OggS\0\x02"[..], &[0; 20], &[1, 19], b"OpusHead\x01\x01", &[0; 9]].concat();
    assert_eq!(
        decode(&page).to_string(),
        format!("the OGG audio uses Opus, which {convert}")
    );
}

#[test]
fn empty_data_and_zero_rates_are_named() {
    let limits = Limits::default();
    let image = media::image::decode(b"", &limits).unwrap_err();
    assert_eq!(image.to_string(), "the image data is empty");
    let audio = media::audio::decode(b"", 16_000, &limits).unwrap_err();
    assert_eq!(audio.to_string(), "the audio data is empty");
    let zero = media::audio::decode(&wav(0, 1, 1000, 1000), 16_000, &limits).unwrap_err();
    assert_eq!(zero.to_string(), "the WAV data is damaged: the sample rate is 0 Hz");
}

/// Programs that write to a pipe do not know the length when they write the header.
#[test]
fn wav_with_unknown_length_extends_to_its_end() {
    let limits = Limits::default();
    let whole = wav(16_000, 1, 1000, 1000);
    let expected = media::audio::decode(&whole, 16_000, &limits).unwrap();
    assert_eq!(expected.samples.len(), 500);
    let at = whole.len() - 1000 - 4;
    assert_eq!(whole[at..at + 4], 1000u32.to_le_bytes());
    for (riff, data) in [
        (u32::MAX, u32::MAX),
        (0x7fff_f024, 0x7fff_f000),
        (0x8000_0024, 0x8000_0000),
        (0, 0),
    ] {
        let mut piped = whole.clone();
        piped[4..8].copy_from_slice(&riff.to_le_bytes());
        piped[at..at + 4].copy_from_slice(&data.to_le_bytes());
        // A partial sample at the end is ignored.
        for tail in [&[][..], &[7]] {
            let piped = [&piped[..], tail].concat();
            assert_eq!(
                media::audio::decode(&piped, 16_000, &limits).as_ref(),
                Ok(&expected),
                "{data}"
            );
            assert_eq!(media::audio::duration(&piped, &limits), Ok(500.0 / 16_000.0), "{data}");
        }
    }
}

#[test]
fn truncated_media_are_damaged() {
    let limits = Limits::default();
    let data = recorded("images.bin");
    // Further frames of an animation are not read.
    for case in images(&data).iter().filter(|case| !case.name.contains("animated")) {
        for cut in [10, case.encoded.len() / 3, case.encoded.len() * 2 / 3] {
            let result = media::image::decode(&case.encoded[..cut], &limits);
            assert!(result.is_err(), "{} cut at {cut}", case.name);
        }
    }
    let cut = wav(16_000, 1, 1000, 2000);
    let error = media::audio::decode(&cut, 16_000, &limits).unwrap_err();
    assert_eq!(error.to_string(), "the WAV data is damaged: the end is missing");
}

/// Decodes `n` mutations of each medium: changed bytes, lost parts, and repeated parts.
fn mutate(n: usize) {
    let limits = Limits {
        pixels: 1_000_000,
        seconds: 20,
        ..Limits::default()
    };
    let (image_data, audio_data) = (recorded("images.bin"), recorded("audio.bin"));
    let image_files = images(&image_data).into_iter().map(|case| (case.name, case.encoded));
    let audio_files = audio(&audio_data).into_iter().map(|case| (case.name, case.encoded));
    for (file, (name, encoded)) in image_files.chain(audio_files).enumerate() {
        for round in 0..n {
            let random: Vec<u8> = noise((file * 1000 + round) as u64 + 50_000, 64).collect();
            let mut random = random
                .chunks_exact(2)
                .map(|pair| usize::from(pair[0]) << 8 | usize::from(pair[1]));
            let mut next = || random.next().unwrap_or(0);
            let mut data = encoded.to_vec();
            for _ in 0..1 + next() % 6 {
                // Mutations of headers have more effect than mutations of pixels.
                let range = if next() % 2 == 0 {
                    data.len().min(64)
                } else {
                    data.len()
                };
                let at = next() % range.max(1);
                match next() % 5 {
                    0 => data.truncate(at.max(4)),
                    1 => data.extend_from_within(at..),
                    _ if at < data.len() => data[at] = next() as u8,
                    _ => (),
                }
            }
            let start = Instant::now();
            let decoded = std::panic::catch_unwind(|| {
                let _ = media::image::size(&data, &limits);
                let _ = media::audio::duration(&data, &limits);
                let image = media::image::decode(&data, &limits).map(|image| image.data.len());
                (
                    image,
                    media::audio::decode(&data, 16_000, &limits).map(|pcm| pcm.samples.len()),
                )
            });
            let took = start.elapsed();
            assert!(decoded.is_ok(), "{name}, round {round}: panic");
            assert!(took < Duration::from_secs(5), "{name}, round {round}: {took:?}");
        }
    }
}

#[test]
fn mutated_media_do_not_panic() {
    mutate(12);
}

#[test]
#[ignore = "takes a minute: 11,000 mutations"]
fn many_mutated_media_do_not_panic() {
    mutate(100);
}

/// Returns a mono WAV file of floats.
fn float_wav(samples: &[f32]) -> Vec<u8> {
    let data: Vec<u8> = samples.iter().flat_map(|x| x.to_le_bytes()).collect();
    let mut bytes = b"RIFF".to_vec();
    bytes.extend((36 + data.len() as u32).to_le_bytes());
    bytes.extend(b"WAVEfmt \x10\0\0\0\x03\0\x01\0");
    bytes.extend(16_000u32.to_le_bytes());
    bytes.extend(64_000u32.to_le_bytes());
    bytes.extend(b"\x04\0\x20\0data");
    bytes.extend((data.len() as u32).to_le_bytes());
    bytes.extend(data);
    bytes
}

#[test]
fn non_finite_samples_are_rejected() {
    let limits = Limits::default();
    let decoded = |sample: f32| media::audio::decode(&float_wav(&[0.5, sample, -0.25]), 16_000, &limits);
    assert_eq!(decoded(1.5).unwrap().samples, [0.5, 1.5, -0.25]);
    for sample in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30] {
        let error = decoded(sample).unwrap_err().to_string();
        let expected = "the WAV data is damaged: a sample is not a number from -65536 to 65536";
        assert_eq!(error, expected, "{sample}");
    }
}

#[test]
fn wav_with_too_many_channels_is_rejected_by_header() {
    for channels in [0u16, 33, 0x4001, u16::MAX] {
        let mut wav = float_wav(&[0.5; 8]);
        wav[22..24].copy_from_slice(&channels.to_le_bytes());
        let expected = match channels {
            0 => "the WAV data is damaged: the number of channels is 0".to_owned(),
            n => format!("the WAV audio has {n} channels; the limit is 32"),
        };
        let errors = [
            media::audio::decode(&wav, 16_000, &Limits::default()).unwrap_err(),
            media::audio::duration(&wav, &Limits::default()).unwrap_err(),
        ];
        assert!(errors.iter().all(|e| e.to_string() == expected), "{errors:?}");
    }
}
