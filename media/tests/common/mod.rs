//! Data of tests, recorded by `tests/tools/record_pixels.py`, and the functions that it shares with them.
#![allow(dead_code)]

use std::path::Path;

/// Returns a recorded file.
pub fn recorded(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/data/media")
        .join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Returns `n` bytes of noise.
pub fn noise(seed: u64, n: usize) -> impl Iterator<Item = u8> {
    (0..n as u64).map(move |i| {
        let mut hash = (i + seed * 1_000_003).wrapping_mul(2_654_435_761) & 0xffff_ffff;
        hash ^= hash >> 15;
        hash = hash.wrapping_mul(2_246_822_519) & 0xffff_ffff;
        (hash >> 13) as u8
    })
}

/// Returns `n` samples of tones and noise, with a silent part.
pub fn signal(n: usize) -> Vec<f32> {
    let saw = |i: i64, period: i64| i % period * 8000 / period - 4000;
    let sample = |(i, noise): (usize, u8)| {
        if (n / 3..n / 3 + 700).contains(&i) {
            return 0.0;
        }
        let i = i as i64;
        let loud = (i * 7 % 9000 - 4500).abs();
        let value = (saw(i, 37) + saw(i, 101) + i64::from(noise) * 8 - 1024) * loud;
        value.div_euclid(4500).clamp(-32768, 32767) as f32 / 32768.0
    };
    noise(0, n).enumerate().map(sample).collect()
}

/// Returns the CRC-32 of zlib.
pub fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
    let table: Vec<u32> = (0..256).map(|byte| (0..8).fold(byte, |crc, _| step(crc))).collect();
    !bytes
        .iter()
        .fold(!0, |crc: u32, &byte| table[usize::from(crc as u8 ^ byte)] ^ crc >> 8)
}

/// Reads recorded values one after the other.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn bytes(&mut self, n: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(n);
        self.0 = rest;
        bytes
    }

    pub fn number(&mut self, bytes: usize) -> usize {
        self.bytes(bytes)
            .iter()
            .rev()
            .fold(0, |value, &byte| value << 8 | usize::from(byte))
    }

    pub fn name(&mut self) -> &'a str {
        let n = self.number(1);
        std::str::from_utf8(self.bytes(n)).unwrap()
    }
}

/// A recorded image: name, encoded bytes, width, height, and pixels or their CRC-32.
pub struct RecordedImage<'a> {
    pub name: &'a str,
    pub encoded: &'a [u8],
    pub size: (u32, u32),
    pub pixels: &'a [u8],
}

/// Reads all images of `images.bin`.
pub fn images(data: &[u8]) -> Vec<RecordedImage<'_>> {
    let mut reader = Reader(data);
    let mut images = Vec::new();
    while !reader.0.is_empty() {
        let name = reader.name();
        let n = reader.number(4);
        let encoded = reader.bytes(n);
        let size = (reader.number(2) as u32, reader.number(2) as u32);
        let n = reader.number(4);
        images.push(RecordedImage {
            name,
            encoded,
            size,
            pixels: reader.bytes(n),
        });
    }
    images
}

/// Recorded audio: name, encoded bytes, sample rate, and samples as 16-bit integers.
pub struct RecordedAudio<'a> {
    pub name: &'a str,
    pub encoded: &'a [u8],
    pub rate: u32,
    pub samples: Vec<i16>,
}

/// Reads all of `audio.bin`.
pub fn audio(data: &[u8]) -> Vec<RecordedAudio<'_>> {
    let mut reader = Reader(data);
    let mut all = Vec::new();
    while !reader.0.is_empty() {
        let name = reader.name();
        let n = reader.number(4);
        let encoded = reader.bytes(n);
        let (rate, n) = (reader.number(4) as u32, reader.number(4));
        let samples = reader
            .bytes(2 * n)
            .chunks_exact(2)
            .map(|pair| i16::from_le_bytes([pair[0], pair[1]]));
        all.push(RecordedAudio {
            name,
            encoded,
            rate,
            samples: samples.collect(),
        });
    }
    all
}
