use std::borrow::Cow;
use std::io::{Cursor, ErrorKind};

use symphonia::core::codecs::audio::{AudioCodecParameters, AudioDecoderOptions};
use symphonia::core::errors::Error;
use symphonia::core::formats::{FormatOptions, FormatReader, Track, TrackType};
use symphonia::core::io::MediaSourceStream;
use symphonia::default::formats::{FlacReader, MpaReader, OggReader, WavReader};

use super::codec::{of_ogg, of_wav};
use super::resample::Resampler;
use crate::format::skip_id3;
use crate::{Format, Limits, MediaError};

/// Samples of one channel.
#[derive(Debug, Clone, PartialEq)]
pub struct Pcm {
    /// Samples per second.
    pub rate: u32,
    /// Samples from -1 to 1.
    pub samples: Vec<f32>,
}

/// Maximum magnitude of a sample. Some programs store 16-bit values as floats without scaling them to 1.
const MAX_SAMPLE: f32 = 65_536.0;

/// Decodes audio to `rate` samples per second. Channels are averaged, then the rate is changed as by
/// [`resample`](super::resample), piece by piece: memory holds the result, not the stored channels.
pub fn decode(bytes: &[u8], rate: u32, limits: &Limits) -> Result<Pcm, MediaError> {
    let format = limits.audio_format(bytes)?;
    let mut stream = Stream::open(format, bytes, limits)?;
    let params = stream.params.clone();
    let registry = symphonia::default::get_codecs();
    let decoder = registry.make_audio_decoder(&params, &AudioDecoderOptions::default());
    let mut decoder = decoder.map_err(|e| error(format, e))?;

    let mut signal = Signal {
        format,
        rate,
        resampler: None,
        length: 0,
        out: Vec::new(),
    };
    if let Some(samples) = stream.n_samples {
        let source = params.sample_rate.unwrap_or(0);
        limits.check_signal(format, source, 1)?;
        limits.check_length(format, samples, source)?;
    }
    let mut interleaved: Vec<f32> = Vec::new();
    let mut skipped = None;
    while let Some(packet) = stream.next_packet()? {
        match decoder.decode(&packet) {
            Ok(decoded) => {
                let (source, channels) = (decoded.spec().rate(), decoded.spec().channels().count());
                limits.check_signal(format, source, channels)?;
                decoded.copy_to_vec_interleaved(&mut interleaved);
                check_samples(format, &interleaved)?;
                signal.push(&interleaved, source, channels, limits)?;
            }
            // The first frames of an MP3 stream that was cut out of a longer one refer to missing frames.
            Err(e @ Error::DecodeError(_)) if format == Format::Mp3 => skipped = Some(e),
            Err(e) => return Err(error(format, e)),
        }
    }
    if signal.length == 0 {
        return Err(skipped.map_or_else(|| MediaError::damaged(format, "no samples"), |e| error(format, e)));
    }
    Ok(signal.finish())
}

/// Checks the codec, the number of channels, and the sample rate in the header of a WAV file. The reader multiplies
/// channels and rate without a check.
fn check_wav_header(bytes: &[u8], limits: &Limits) -> Result<(), MediaError> {
    // Chunks follow the RIFF header of 12 bytes. A chunk has a name, the length of its content, and the content.
    let mut rest = bytes.get(12..).unwrap_or_default();
    while let Some((head, content)) = rest.split_first_chunk::<8>() {
        let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        if head.starts_with(b"fmt ")
            && let Some(&[c0, c1, r0, r1, r2, r3]) = content.get(2..8)
        {
            let channels = u16::from_le_bytes([c0, c1]);
            limits.check_signal(Format::Wav, u32::from_le_bytes([r0, r1, r2, r3]), channels.into())?;
            of_wav(&content[..length.min(content.len())])?;
        }
        // Contents have an even length.
        let end = length.saturating_add(length & 1);
        rest = content.get(end..).unwrap_or_default();
    }
    Ok(())
}

/// Smallest length that programs write in place of an unknown length: 0x7FFFF000, 0x80000000, or 0xFFFFFFFF.
const UNKNOWN_LENGTH: usize = 0x7fff_f000;

/// Corrects the lengths of a WAV file that was written to a pipe: its samples extend to the end of the file. Other files
/// are returned unchanged.
fn with_length(bytes: &[u8]) -> Cow<'_, [u8]> {
    let number = |at: usize| {
        let bytes = bytes.get(at..).and_then(|rest| rest.first_chunk());
        bytes.map(|bytes| u32::from_le_bytes(*bytes) as usize)
    };
    let (mut at, mut frame) = (12_usize, 1_usize);
    while let Some(length) = number(at.saturating_add(4)) {
        let (name, content) = (&bytes[at..at + 4], at + 8);
        if name == b"data" {
            let rest = bytes.len() - content;
            let is_unknown = length > rest && length >= UNKNOWN_LENGTH || length == 0 && number(4) == Some(0);
            let n = rest - rest % frame;
            return match u32::try_from(n) {
                Ok(length) if is_unknown => lengthened(&bytes[..content + n], content, length),
                _ => bytes.into(),
            };
        }
        if name == b"fmt " {
            // The size of a frame is a number of 16 bits before the bits of a sample.
            frame = number(content + 12).map_or(1, |n| (n & 0xffff).max(1));
        }
        at = content.saturating_add(length).saturating_add(length & 1);
    }
    bytes.into()
}

/// Returns a WAV file with the length of its last chunk, whose content starts at `content`.
fn lengthened(bytes: &[u8], content: usize, length: u32) -> Cow<'_, [u8]> {
    let mut bytes = bytes.to_vec();
    bytes[content - 4..content].copy_from_slice(&length.to_le_bytes());
    let of_riff = u32::try_from(bytes.len() - 8).unwrap_or(u32::MAX);
    bytes[4..8].copy_from_slice(&of_riff.to_le_bytes());
    bytes.into()
}

/// Checks that all samples are numbers whose sums stay finite.
fn check_samples(format: Format, samples: &[f32]) -> Result<(), MediaError> {
    // The comparison is false for NaN.
    if samples.iter().all(|x| x.abs() <= MAX_SAMPLE) {
        return Ok(());
    }
    let reason = format!("a sample is not a number from -{MAX_SAMPLE} to {MAX_SAMPLE}");
    Err(MediaError::damaged(format, reason))
}

/// Returns the duration of audio in seconds, from its headers where they have it, otherwise from the headers of all
/// packets. Samples are not decoded.
pub fn duration(bytes: &[u8], limits: &Limits) -> Result<f64, MediaError> {
    let format = limits.audio_format(bytes)?;
    let mut stream = Stream::open(format, bytes, limits)?;
    let rate = stream.params.sample_rate.unwrap_or(0);
    limits.check_signal(format, rate, 1)?;
    let samples = match stream.n_samples {
        Some(samples) => samples,
        None => {
            let mut samples: u64 = 0;
            while let Some(packet) = stream.next_packet()? {
                samples = samples.saturating_add(packet.dur.get());
                limits.check_length(format, samples, rate)?;
            }
            samples
        }
    };
    limits.check_length(format, samples, rate)?;
    Ok(samples as f64 / f64::from(rate))
}

/// Packets of the first audio track.
struct Stream<'a> {
    format: Format,
    reader: Box<dyn FormatReader + 'a>,
    track: u32,
    params: AudioCodecParameters,
    /// Samples per channel, if the header has the number.
    n_samples: Option<u64>,
}

impl<'a> Stream<'a> {
    fn open(format: Format, bytes: &'a [u8], limits: &Limits) -> Result<Stream<'a>, MediaError> {
        if format == Format::Wav {
            check_wav_header(bytes, limits)?;
        }
        if format == Format::Ogg {
            of_ogg(bytes)?;
        }
        let source = match format {
            Format::Wav => with_length(bytes),
            _ => skip_id3(bytes).into(),
        };
        let source = Box::new(Cursor::new(source));
        let source = MediaSourceStream::new(source, Default::default());
        let options = FormatOptions::default();
        let reader: Result<Box<dyn FormatReader + 'a>, Error> = match format {
            Format::Wav => WavReader::try_new(source, options).map(|reader| Box::new(reader) as _),
            Format::Flac => FlacReader::try_new(source, options).map(|reader| Box::new(reader) as _),
            Format::Ogg => OggReader::try_new(source, options).map(|reader| Box::new(reader) as _),
            _ => MpaReader::try_new(source, options).map(|reader| Box::new(reader) as _),
        };
        let reader = reader.map_err(|e| error(format, e))?;
        let (track, params, n_samples) = {
            let track = reader.default_track(TrackType::Audio);
            let (track, params) = track.and_then(audio_params).ok_or_else(|| no_track(format))?;
            (track.id, params.clone(), track.num_frames)
        };
        Ok(Stream {
            format,
            reader,
            track,
            params,
            n_samples,
        })
    }

    /// Returns the next packet, or `None` at the end.
    fn next_packet(&mut self) -> Result<Option<symphonia::core::packet::Packet>, MediaError> {
        loop {
            match self.reader.next_packet() {
                Ok(Some(packet)) if packet.track_id != self.track => (),
                Ok(packet) => return Ok(packet),
                // Streams are cut between frames, where players end without an error.
                Err(Error::IoError(e)) if self.format == Format::Mp3 && e.kind() == ErrorKind::UnexpectedEof => {
                    return Ok(None);
                }
                Err(e) => return Err(error(self.format, e)),
            }
        }
    }
}

fn audio_params(track: &Track) -> Option<(&Track, &AudioCodecParameters)> {
    Some((track, track.codec_params.as_ref()?.audio()?))
}

fn no_track(format: Format) -> MediaError {
    let codec = "a codec other than PCM, MP3, FLAC, and Vorbis".to_owned();
    MediaError::Codec { format, codec }
}

fn error(format: Format, error: Error) -> MediaError {
    match error {
        Error::Unsupported(feature) => MediaError::unsupported(format, feature),
        Error::IoError(e) if e.kind() == ErrorKind::UnexpectedEof => MediaError::damaged(format, "the end is missing"),
        Error::DecodeError(reason) => MediaError::damaged(format, reason),
        other => MediaError::damaged(format, other),
    }
}

/// Collects samples of one channel at the requested rate.
struct Signal {
    format: Format,
    rate: u32,
    /// Set by the first packet, which has the stored rate.
    resampler: Option<(u32, Resampler)>,
    /// Number of stored samples per channel that were read.
    length: u64,
    out: Vec<f32>,
}

impl Signal {
    fn push(&mut self, interleaved: &[f32], rate: u32, channels: usize, limits: &Limits) -> Result<(), MediaError> {
        let (first, resampler) = self
            .resampler
            .get_or_insert_with(|| (rate, Resampler::new(rate, self.rate)));
        if *first != rate {
            return Err(MediaError::unsupported(self.format, "several sample rates"));
        }
        self.length += (interleaved.len() / channels) as u64;
        limits.check_length(self.format, self.length, rate)?;
        let share = 1.0 / channels as f32;
        let mono: Vec<f32> = interleaved
            .chunks_exact(channels)
            .map(|frame| frame.iter().sum::<f32>() * share)
            .collect();
        resampler.push(&mono, &mut self.out);
        Ok(())
    }

    fn finish(mut self) -> Pcm {
        if let Some((_, resampler)) = self.resampler {
            resampler.finish(&mut self.out);
        }
        Pcm {
            rate: self.rate,
            samples: self.out,
        }
    }
}
