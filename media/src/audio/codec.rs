//! Names of codecs that have no decoder here.

use crate::{Format, MediaError};

/// Tag of a format chunk whose codec is in a longer header.
const EXTENSIBLE: u16 = 0xfffe;

/// Tags of PCM, floats, A-law, and mu-law.
const SUPPORTED: [u16; 4] = [1, 3, 6, 7];

/// Names of the registered tags that occur in practice.
const NAMES: &[(u16, &str)] = &[
    (0x0002, "Microsoft ADPCM"),
    (0x0010, "OKI ADPCM"),
    (0x0011, "IMA ADPCM"),
    (0x0022, "TrueSpeech"),
    (0x0031, "GSM 6.10"),
    (0x0040, "G.721 ADPCM"),
    (0x0045, "G.726 ADPCM"),
    (0x0050, "MPEG"),
    (0x0055, "MP3"),
    (0x0064, "G.726 ADPCM"),
    (0x0083, "G.729"),
    (0x00ff, "AAC"),
    (0x0161, "Windows Media Audio"),
    (0x0162, "Windows Media Audio Professional"),
    (0x0163, "Windows Media Audio Lossless"),
    (0x028f, "G.722 ADPCM"),
    (0x1610, "AAC"),
    (0x2000, "AC-3"),
    (0x2001, "DTS"),
    (0x566f, "Vorbis"),
    (0x704f, "Opus"),
    (0xa109, "Speex"),
    (0xf1ac, "FLAC"),
];

/// Checks the codec in the format chunk of a WAV file.
pub fn of_wav(chunk: &[u8]) -> Result<(), MediaError> {
    let number = |at: usize| {
        let bytes = chunk.get(at..).and_then(|rest| rest.first_chunk());
        bytes.map(|bytes| u16::from_le_bytes(*bytes))
    };
    let Some(tag) = number(0) else { return Ok(()) };
    // An extensible chunk starts with 24 bytes that other chunks also have, and ends with an identifier of 16 bytes that
    // starts with the tag.
    let tag = if tag == EXTENSIBLE {
        number(24).unwrap_or(tag)
    } else {
        tag
    };
    if SUPPORTED.contains(&tag) || tag == EXTENSIBLE {
        return Ok(());
    }
    let name = NAMES.iter().find(|(known, _)| *known == tag);
    let codec = match name {
        Some((_, name)) => format!("{name} (codec 0x{tag:04x})"),
        None => format!("an unknown codec (0x{tag:04x})"),
    };
    let format = Format::Wav;
    Err(MediaError::Codec { format, codec })
}

/// Checks the codec of the first stream of an OGG file.
pub fn of_ogg(bytes: &[u8]) -> Result<(), MediaError> {
    // The header of a page has 27 bytes and a table, whose length is the last of them. The first packet follows.
    let table = bytes.get(26).map_or(0, |n| usize::from(*n));
    let packet = bytes.get(27 + table..).unwrap_or_default();
    let starts: [(&[u8], &str); 2] = [(b"OpusHead", "Opus"), (b"Speex   ", "Speex")];
    match starts.iter().find(|(start, _)| packet.starts_with(start)) {
        Some((_, codec)) => Err(MediaError::Codec {
            format: Format::Ogg,
            codec: (*codec).to_owned(),
        }),
        None => Ok(()),
    }
}
