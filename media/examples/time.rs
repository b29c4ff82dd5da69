//! Prints the time to decode media files: images also resized to 896 x 672 pixels, audio at 16 kHz with a mel
//! spectrogram.

use std::time::Instant;

use media::audio::{MelKind, mel};
use media::image::{Filter, resize};
use media::{Format, Limits};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for file in std::env::args().skip(1) {
        let bytes = std::fs::read(&file)?;
        let start = Instant::now();
        if Format::detect(&bytes).is_some_and(Format::is_image) {
            let image = media::image::decode(&bytes, &Limits::default())?;
            let decoded = start.elapsed();
            let resized = resize(&image, 896, 672, Filter::Bicubic);
            let (size, total) = ((image.width, image.height), start.elapsed());
            println!(
                "{file}: {size:?} decoded in {decoded:.1?}, with {} resized in {total:.1?}",
                resized.width
            );
        } else {
            let pcm = media::audio::decode(&bytes, 16_000, &Limits::default())?;
            let decoded = start.elapsed();
            let mel = mel(&pcm.samples, MelKind::Whisper, 80);
            let seconds = pcm.samples.len() as f64 / 16_000.0;
            println!(
                "{file}: {seconds:.1} s decoded in {decoded:.1?}, with {} frames in {:.1?}",
                mel.n_frames,
                start.elapsed()
            );
        }
    }
    Ok(())
}
