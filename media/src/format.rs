use std::fmt;

/// Format of encoded media.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// Portable Network Graphics.
    Png,
    /// JPEG in a JFIF or EXIF file.
    Jpeg,
    /// WebP, lossy or lossless.
    WebP,
    /// Graphics Interchange Format.
    Gif,
    /// Windows bitmap.
    Bmp,
    /// PCM in a RIFF file.
    Wav,
    /// MPEG audio, layer III.
    Mp3,
    /// Free Lossless Audio Codec.
    Flac,
    /// Vorbis in an OGG file.
    Ogg,
}

impl Format {
    /// Returns the format that `bytes` start like.
    pub fn detect(bytes: &[u8]) -> Option<Format> {
        let riff = |kind: &[u8]| bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(kind);
        Some(match bytes {
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Format::Png,
            [0xff, 0xd8, 0xff, ..] => Format::Jpeg,
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Format::Gif,
            [b'B', b'M', ..] => Format::Bmp,
            [b'f', b'L', b'a', b'C', ..] => Format::Flac,
            [b'O', b'g', b'g', b'S', ..] => Format::Ogg,
            [b'I', b'D', b'3', ..] => Format::behind_id3(bytes),
            _ if riff(b"WEBP") => Format::WebP,
            _ if riff(b"WAVE") => Format::Wav,
            _ if is_mp3_frame(bytes) => Format::Mp3,
            _ => return None,
        })
    }

    /// Returns the name of a common format without a decoder that `bytes` start like.
    pub(crate) fn name_of_other(bytes: &[u8]) -> Option<&'static str> {
        let starts: [(usize, &[u8], &str); 18] = [
            (4, b"ftypavif", "AVIF"),
            (4, b"ftypheic", "HEIC"),
            (4, b"ftypheix", "HEIC"),
            (4, b"ftypmif1", "HEIF"),
            (4, b"ftypM4A", "M4A"),
            (4, b"ftyp", "MP4"),
            (0, b"II*\0", "TIFF"),
            (0, b"MM\0*", "TIFF"),
            (0, b"\0\0\x01\0", "ICO"),
            (4, b"jP  \r\n\x87\n", "JPEG 2000"),
            (0, b"\xff\x0a", "JPEG XL"),
            (4, b"JXL \r\n\x87\n", "JPEG XL"),
            (0, b"%PDF-", "PDF"),
            (0, b"<svg", "SVG"),
            (0, b"FORM", "AIFF"),
            (0, b"#!AMR", "AMR"),
            (0, b"\x1aE\xdf\xa3", "WebM or Matroska"),
            (0, b"RF64", "RF64"),
        ];
        let is = |(at, start, _): &&(usize, &[u8], &str)| bytes.get(*at..).is_some_and(|rest| rest.starts_with(start));
        starts.iter().find(is).map(|(.., name)| *name)
    }

    /// Returns whether this is a format of images.
    pub fn is_image(self) -> bool {
        matches!(
            self,
            Format::Png | Format::Jpeg | Format::WebP | Format::Gif | Format::Bmp
        )
    }

    /// Returns the IANA media type.
    pub fn media_type(self) -> &'static str {
        match self {
            Format::Png => "image/png",
            Format::Jpeg => "image/jpeg",
            Format::WebP => "image/webp",
            Format::Gif => "image/gif",
            Format::Bmp => "image/bmp",
            Format::Wav => "audio/wav",
            Format::Mp3 => "audio/mpeg",
            Format::Flac => "audio/flac",
            Format::Ogg => "audio/ogg",
        }
    }

    /// ID3 tags precede MP3 frames, and some programs write them before FLAC as well.
    fn behind_id3(bytes: &[u8]) -> Format {
        if skip_id3(bytes).starts_with(b"fLaC") {
            Format::Flac
        } else {
            Format::Mp3
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Png => "PNG",
            Format::Jpeg => "JPEG",
            Format::WebP => "WebP",
            Format::Gif => "GIF",
            Format::Bmp => "BMP",
            Format::Wav => "WAV",
            Format::Mp3 => "MP3",
            Format::Flac => "FLAC",
            Format::Ogg => "OGG",
        })
    }
}

/// Returns the bytes after the ID3v2 tags at the start.
pub(crate) fn skip_id3(mut bytes: &[u8]) -> &[u8] {
    while let [b'I', b'D', b'3', _, _, flags, a, b, c, d, ..] = *bytes {
        let size = [a, b, c, d]
            .iter()
            .fold(0, |n, &byte| n << 7 | usize::from(byte & 0x7f));
        let footer = if flags & 0x10 == 0 { 0 } else { 10 };
        bytes = bytes.get(10 + size + footer..).unwrap_or_default();
    }
    bytes
}

/// Returns whether a frame header of MPEG audio, layer III, comes first.
fn is_mp3_frame(bytes: &[u8]) -> bool {
    let [0xff, second, third, ..] = *bytes else {
        return false;
    };
    let (sync, version, layer) = (second >> 5, second >> 3 & 3, second >> 1 & 3);
    sync == 7 && version != 1 && layer == 1 && third >> 4 != 15 && third >> 2 & 3 != 3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_detected_from_the_first_bytes() {
        assert_eq!(Format::detect(b"RIFF\0\0\0\0WAVEfmt "), Some(Format::Wav));
        assert_eq!(Format::detect(b"RIFF\0\0\0\0WEBPVP8 "), Some(Format::WebP));
        assert_eq!(Format::detect(b"RIFF\0\0\0\0AVI "), None);
        assert_eq!(Format::detect(&[0xff, 0xfb, 0x90, 0x64]), Some(Format::Mp3));
        assert_eq!(Format::detect(&[0xff, 0xfb, 0xf0, 0x64]), None);
        assert_eq!(Format::detect(b"ID3\x04\0\0\0\0\0\x02xxfLaC"), Some(Format::Flac));
        assert_eq!(Format::detect(b"ID3\x04\0\0\x7f\x7f\x7f\x7f"), Some(Format::Mp3));
        assert_eq!(Format::detect(b""), None);
        assert_eq!(Format::detect(b"GIF88a"), None);
    }
}
