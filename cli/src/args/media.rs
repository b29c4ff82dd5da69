//! Arguments for images.

use std::path::PathBuf;

use clap::Args;

/// Help heading of the options.
const IMAGES: &str = "Images";

/// Image options.
#[derive(Clone, Debug, Default, Args)]
pub struct MediaArgs {
    /// Multimodal projector file, which encodes images for the model (-mm)
    #[arg(
        long,
        value_name = "FILE",
        overrides_with = "no_mmproj",
        help_heading = IMAGES
    )]
    pub mmproj: Option<PathBuf>,
    /// Do not load a projector (default)
    #[arg(
        long,
        alias = "no-mmproj-auto",
        overrides_with = "mmproj",
        hide_short_help = true,
        help_heading = IMAGES
    )]
    pub no_mmproj: bool,
    /// Image to put before the prompt (may be repeated, or comma-separated)
    ///
    /// PNG, JPEG, WebP, GIF and BMP files are accepted.
    #[arg(long, value_name = "FILE", value_delimiter = ',', requires = "mmproj", help_heading = IMAGES)]
    pub image: Vec<PathBuf>,
}
