//! Arguments for images and audio.

use std::path::PathBuf;

use clap::Args;
use media::Limits;

use super::placement::{DeviceList, device_list};

/// Help heading of the options.
const MEDIA: &str = "Images and audio";

/// Projector of a model.
#[derive(Clone, Debug, Default, Args)]
pub struct ProjectorArgs {
    /// Projector for images or audio (-mm) [default: mmproj*.gguf next to the model]
    ///
    /// A model name, such as user/repo:Q4_K_M, selects the projector in its repository.
    #[arg(
        long,
        value_name = "FILE",
        overrides_with = "no_mmproj",
        help_heading = MEDIA
    )]
    pub mmproj: Option<PathBuf>,
    /// Devices of the projector (-mmdev), as for --device [default: --device]
    #[arg(long, value_name = "LIST", value_parser = device_list, hide_short_help = true, help_heading = MEDIA)]
    pub mmproj_device: Option<DeviceList>,
    /// Declaration FILE.rs of the projector's encoder [default: the built-in encoder]
    #[arg(long, value_name = "FILE", hide_short_help = true, help_heading = MEDIA)]
    pub mmproj_arch: Option<PathBuf>,
    /// Do not load a projector
    #[arg(
        long,
        alias = "no-mmproj-auto",
        overrides_with = "mmproj",
        hide_short_help = true,
        help_heading = MEDIA
    )]
    pub no_mmproj: bool,
    /// Minimum rows (tokens) of an image, for encoders that take images of any size
    #[arg(long, value_name = "N", hide_short_help = true, value_parser = clap::value_parser!(u32).range(1..), help_heading = MEDIA)]
    pub image_min_tokens: Option<u32>,
    /// Maximum rows (tokens) of an image, for encoders that take images of any size
    #[arg(long, value_name = "N", hide_short_help = true, value_parser = clap::value_parser!(u32).range(1..), help_heading = MEDIA)]
    pub image_max_tokens: Option<u32>,
}

impl ProjectorArgs {
    /// Returns true if an option limits the rows of images.
    pub fn limits_rows(&self) -> bool {
        self.image_min_tokens.is_some() || self.image_max_tokens.is_some()
    }
}

/// Image and audio options of a prompt.
#[derive(Clone, Debug, Default, Args)]
pub struct MediaArgs {
    #[command(flatten)]
    pub projector: ProjectorArgs,
    /// Image to put before the prompt (may be repeated or comma-separated)
    ///
    /// PNG, JPEG, WebP, GIF, and BMP files are accepted.
    #[arg(long, value_name = "FILE", value_delimiter = ',', help_heading = MEDIA)]
    pub image: Vec<PathBuf>,
    /// Audio to put before the prompt (may be repeated or comma-separated)
    ///
    /// WAV, MP3, FLAC, and OGG Vorbis files are accepted.
    #[arg(long, value_name = "FILE", value_delimiter = ',', help_heading = MEDIA)]
    pub audio: Vec<PathBuf>,
}

/// Image and audio options of a server.
#[derive(Clone, Debug, Args)]
pub struct ServedMediaArgs {
    #[command(flatten)]
    pub projector: ProjectorArgs,
    /// Memory for encoded images and audio in MiB; a repeated file is not encoded again
    #[arg(long, value_name = "MIB", default_value_t = 256, hide_short_help = true, help_heading = MEDIA, value_parser = clap::value_parser!(u32).range(..=1 << 20))]
    pub media_cache: u32,
    /// Maximum size of an image or audio file in MiB; the files of a request may total twice as much
    #[arg(long, value_name = "MIB", default_value_t = 20, hide_short_help = true, help_heading = MEDIA, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub media_max_mib: u32,
    /// Directory of files that requests may reference by `file:` URL, for models with a projector
    #[arg(long, value_name = "DIR", hide_short_help = true, help_heading = MEDIA)]
    pub media_path: Option<PathBuf>,
    /// Hosts of files that requests may reference by http: or https: URL (may be repeated or comma-separated)
    ///
    /// Needs a model with a projector. Ports, redirects, and addresses that are not public are refused. `.example.org`
    /// admits all subdomains.
    #[arg(long, value_name = "HOST", value_delimiter = ',', hide_short_help = true, help_heading = MEDIA)]
    pub media_domains: Vec<String>,
}

impl ServedMediaArgs {
    /// Returns true if requests may name files.
    pub fn has_sources(&self) -> bool {
        self.media_path.is_some() || !self.media_domains.is_empty()
    }

    /// Returns the limits of a file.
    pub fn limits(&self) -> Limits {
        Limits {
            bytes: self.max_bytes(),
            ..Limits::default()
        }
    }

    /// Returns the size of the cache in bytes.
    pub fn cache_bytes(&self) -> usize {
        mib(self.media_cache)
    }

    /// Returns the maximum size of a file in bytes.
    pub fn max_bytes(&self) -> usize {
        mib(self.media_max_mib)
    }
}

fn mib(n: u32) -> usize {
    (n as usize).saturating_mul(1 << 20)
}
