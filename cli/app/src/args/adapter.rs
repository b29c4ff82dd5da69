//! Arguments for adapters.

use std::path::PathBuf;

use clap::Args;

use super::values::finite;

/// Help heading of the options.
const ADAPTERS: &str = "Adapters";

/// LoRA adapter and control vector options.
#[derive(Clone, Debug, Default, Args)]
pub struct AdapterArgs {
    /// LoRA adapter and its scale (may be repeated or comma-separated)
    #[arg(long, value_name = "FILE[=SCALE]", value_parser = scaled_file, value_delimiter = ',', hide_short_help = true, help_heading = ADAPTERS)]
    pub lora: Vec<ScaledFile>,
    /// LoRA adapter and its scale, in llama.cpp's syntax
    #[arg(long, value_name = "FILE:SCALE", value_parser = file_and_scale, value_delimiter = ',', hide_short_help = true, help_heading = ADAPTERS)]
    pub lora_scaled: Vec<ScaledFile>,
    /// Control vector and its scale (may be repeated or comma-separated)
    #[arg(long, value_name = "FILE[=SCALE]", value_parser = scaled_file, value_delimiter = ',', hide_short_help = true, help_heading = ADAPTERS)]
    pub control_vector: Vec<ScaledFile>,
    /// Control vector and its scale, in llama.cpp's syntax
    #[arg(long, value_name = "FILE:SCALE", value_parser = file_and_scale, value_delimiter = ',', hide_short_help = true, help_heading = ADAPTERS)]
    pub control_vector_scaled: Vec<ScaledFile>,
    /// First and last layer that control vectors apply to [default: all]
    #[arg(long, num_args = 2, value_names = ["FIRST", "LAST"], hide_short_help = true, help_heading = ADAPTERS)]
    pub control_vector_layer_range: Option<Vec<usize>>,
}

/// An adapter file with its scale.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaledFile {
    pub path: PathBuf,
    pub scale: f32,
}

/// Parses `FILE:SCALE`.
pub fn file_and_scale(text: &str) -> Result<ScaledFile, String> {
    let parts = text.rsplit_once(':').filter(|(path, _)| !path.is_empty());
    let (path, scale) = parts.ok_or("expected FILE:SCALE")?;
    Ok(ScaledFile {
        path: path.into(),
        scale: finite(scale).ok_or_else(|| format!("expected FILE:SCALE with a number, found {scale:?}"))?,
    })
}

/// Parses `FILE` or `FILE=SCALE`. The last `=` starts a scale only if a number follows.
pub fn scaled_file(text: &str) -> Result<ScaledFile, String> {
    let (path, scale) = match text.rsplit_once('=') {
        Some((path, scale)) if finite(scale).is_some() => (path, finite(scale).unwrap_or(1.0)),
        _ => (text, 1.0),
    };
    if path.is_empty() {
        return Err("expected FILE or FILE=SCALE".to_owned());
    }
    Ok(ScaledFile {
        path: path.into(),
        scale,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scale_follows_last_equals_sign() {
        let file = |path: &str, scale| {
            Ok(ScaledFile {
                path: path.into(),
                scale,
            })
        };
        assert_eq!(scaled_file("a.gguf"), file("a.gguf", 1.0));
        assert_eq!(scaled_file("a.gguf=0.5"), file("a.gguf", 0.5));
        assert_eq!(scaled_file("a=b.gguf=-2"), file("a=b.gguf", -2.0));
        assert_eq!(scaled_file("a=b.gguf"), file("a=b.gguf", 1.0));
        assert!(scaled_file("=1").is_err() && scaled_file("").is_err());
    }
}
