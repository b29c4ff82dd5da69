//! Fuzzes the decoders of images and audio: any input must yield a medium within the limits or an error.

#![no_main]

use libfuzzer_sys::fuzz_target;
use media::{Limits, audio, image};

/// Samples per second of the result.
const RATE: u32 = 16_000;

fuzz_target!(|bytes: &[u8]| {
    // Small limits keep the time of each input short.
    let limits = Limits {
        bytes: 1 << 16,
        pixels: 1 << 16,
        side: 1 << 10,
        seconds: 10,
        ..Limits::default()
    };
    match (image::size(bytes, &limits), image::decode(bytes, &limits)) {
        (Ok(size), Ok(image)) => {
            assert_eq!(size, (image.width, image.height));
            assert!(u64::from(image.width) * u64::from(image.height) <= limits.pixels);
            assert_eq!(image.data.len(), image.width as usize * image.height as usize * 3);
        }
        (Err(_), Ok(image)) => panic!("an image of {} x {} pixels has no size", image.width, image.height),
        (_, Err(e)) => assert!(!e.to_string().is_empty()),
    }
    if let Ok(seconds) = audio::duration(bytes, &limits) {
        assert!((0.0..=f64::from(limits.seconds)).contains(&seconds));
    }
    match audio::decode(bytes, RATE, &limits) {
        Ok(pcm) => {
            assert_eq!(pcm.rate, RATE);
            assert!(pcm.samples.len() <= (limits.seconds as usize + 1) * RATE as usize);
            assert!(pcm.samples.iter().all(|x| x.is_finite()));
        }
        Err(e) => assert!(!e.to_string().is_empty()),
    }
});
