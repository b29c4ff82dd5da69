use super::RgbImage;

/// Orientation of the stored pixels: the value of EXIF tag 0x0112.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum Orientation {
    #[default]
    Upright,
    Mirrored,
    Rotated180,
    MirroredVertically,
    Transposed,
    Rotated90,
    Transversed,
    Rotated270,
}

const ORIENTATION_TAG: u16 = 0x0112;

impl Orientation {
    /// Reads the tag from TIFF data, which may follow the marker `Exif`. Damaged data is an upright image.
    pub(super) fn from_exif(exif: &[u8]) -> Orientation {
        let tiff = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
        orientation_value(tiff).map_or(Orientation::Upright, Orientation::from_value)
    }

    fn from_value(value: u32) -> Orientation {
        match value {
            2 => Orientation::Mirrored,
            3 => Orientation::Rotated180,
            4 => Orientation::MirroredVertically,
            5 => Orientation::Transposed,
            6 => Orientation::Rotated90,
            7 => Orientation::Transversed,
            8 => Orientation::Rotated270,
            _ => Orientation::Upright,
        }
    }

    fn swaps_axes(self) -> bool {
        use Orientation::*;
        matches!(self, Transposed | Rotated90 | Transversed | Rotated270)
    }

    /// Returns the size of an upright image whose stored size is `width` x `height`.
    pub(super) fn size(self, width: u32, height: u32) -> (u32, u32) {
        if self.swaps_axes() {
            (height, width)
        } else {
            (width, height)
        }
    }

    /// Returns the upright image.
    pub(super) fn apply(self, image: RgbImage) -> RgbImage {
        use Orientation::*;
        if self == Upright {
            return image;
        }
        let (width, height) = self.size(image.width, image.height);
        let mut data = Vec::with_capacity(image.data.len());
        for y in 0..height as usize {
            for x in 0..width as usize {
                let (right, bottom) = (width as usize - 1 - x, height as usize - 1 - y);
                let (from_x, from_y) = match self {
                    Upright => (x, y),
                    Mirrored => (right, y),
                    Rotated180 => (right, bottom),
                    MirroredVertically => (x, bottom),
                    Transposed => (y, x),
                    Rotated90 => (y, right),
                    Transversed => (bottom, right),
                    Rotated270 => (bottom, x),
                };
                data.extend_from_slice(&image.row(from_y)[from_x * 3..][..3]);
            }
        }
        RgbImage { width, height, data }
    }
}

fn orientation_value(tiff: &[u8]) -> Option<u32> {
    let big_endian = match tiff.get(..4)? {
        b"MM\0*" => true,
        b"II*\0" => false,
        _ => return None,
    };
    let short = |at: usize| {
        let bytes: [u8; 2] = tiff.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if big_endian {
            u16::from_be_bytes(bytes)
        } else {
            u16::from_le_bytes(bytes)
        })
    };
    let long = |at: usize| {
        let bytes: [u8; 4] = tiff.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(if big_endian {
            u32::from_be_bytes(bytes)
        } else {
            u32::from_le_bytes(bytes)
        })
    };
    let directory = long(4)? as usize;
    let n_entries = usize::from(short(directory)?);
    let entry = (0..n_entries)
        .map_while(|i| directory.checked_add(2 + 12 * i))
        .find(|&entry| short(entry) == Some(ORIENTATION_TAG))?;
    match short(entry + 2)? {
        3 => short(entry + 8).map(u32::from),
        4 => long(entry + 8),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orientation_from_damaged_exif_is_upright() {
        let exif = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0";
        assert_eq!(Orientation::from_exif(exif), Orientation::Rotated90);
        for end in 0..28 {
            assert_eq!(
                Orientation::from_exif(&exif[..end.min(24)]),
                Orientation::Upright,
                "{end}"
            );
        }
        let mut far = exif.to_vec();
        far[10..14].fill(0xff);
        assert_eq!(Orientation::from_exif(&far), Orientation::Upright);
    }
}
