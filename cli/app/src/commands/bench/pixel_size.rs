//! Sizes of images on the command line.

use std::fmt;
use std::str::FromStr;

/// Width and height of an image in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PixelSize {
    pub width: usize,
    pub height: usize,
}

/// Maximum side of an image in pixels.
const MAX_SIDE: usize = 16_384;

impl FromStr for PixelSize {
    type Err = String;

    fn from_str(text: &str) -> Result<PixelSize, String> {
        let side = |text: &str| text.parse().ok().filter(|n| (1..=MAX_SIDE).contains(n));
        let sides = text
            .split_once('x')
            .and_then(|(width, height)| Some((side(width)?, side(height)?)));
        let wrong = || format!("expected WIDTHxHEIGHT, each from 1 to {MAX_SIDE} pixels, such as 896x896");
        let (width, height) = sides.ok_or_else(wrong)?;
        Ok(PixelSize { width, height })
    }
}

impl fmt::Display for PixelSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}x{}", self.width, self.height))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_two_limited_sides() {
        assert_eq!(
            "896x512".parse::<PixelSize>().map(|size| size.to_string()).as_deref(),
            Ok("896x512")
        );
        for wrong in ["896", "0x9", "9x", "x9", "16385x1", "-1x1", "1x1x1"] {
            assert!(wrong.parse::<PixelSize>().is_err(), "{wrong}");
        }
    }
}
