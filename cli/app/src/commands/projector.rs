//! Memory of the projector next to a model, and numbers of the rows of its media.

use std::io::Write;
use std::path::{Path, PathBuf};

use engine::builder::ImageSize;
use engine::context::ImageSizes;
use engine::gguf::Gguf;
use engine::model::{self, LoadParams, LoadPlan, MediaUse, ModelError, encoder_media};
use serde::Serialize;

use crate::args::PlanArgs;
use crate::failure::Outcome;
use crate::{format, images};

/// Plan of a projector.
pub struct ProjectorPlan {
    path: PathBuf,
    /// Plan of each encoder.
    pub plans: Vec<LoadPlan>,
}

/// Summary of a projector, printed as text or JSON.
#[derive(Serialize)]
pub struct ProjectorSummary {
    file: String,
    /// Names of the encoders.
    encoder: String,
    weight_bytes: usize,
    /// Size of intermediate results of the largest image or of a chunk of audio, in bytes.
    compute_bytes: usize,
    /// Maximum rows (tokens) of an image, or of a chunk of audio.
    rows: usize,
    media: Option<String>,
}

impl ProjectorPlan {
    /// Plans the projector of a model that reads media: the file of `--mmproj`, or the file next to the model. A file
    /// next to the model that is not a projector is ignored.
    pub fn of(
        args: &PlanArgs,
        language: &LoadPlan,
        file: &Path,
        params: &LoadParams,
    ) -> Outcome<Option<ProjectorPlan>> {
        if args.no_mmproj || language.arch.media_use == MediaUse::None {
            return Ok(None);
        }
        let given = args
            .mmproj
            .as_deref()
            .map(|given| args.hub.projector_of(given))
            .transpose()?;
        let Some(path) = given.or_else(|| images::projector_next_to(file)) else {
            return Ok(None);
        };
        if args.mmproj.is_some() {
            images::expect_projector(&path)?;
        }
        let planned = Gguf::open_header(&path)
            .map_err(Into::into)
            .and_then(|header| encoder_plans(&header, &path, params));
        match planned {
            Ok(plans) => Ok(Some(ProjectorPlan { path, plans })),
            Err(error) if args.mmproj.is_some() => Err(error.into()),
            Err(_) => Ok(None),
        }
    }

    /// Returns the summary of the projector.
    pub fn summary(&self) -> ProjectorSummary {
        let bytes = |memory: fn(&LoadPlan) -> &[(String, usize)]| {
            let all = self.plans.iter().flat_map(memory);
            all.fold(0, |sum: usize, (_, n)| sum.saturating_add(*n))
        };
        let names: Vec<&str> = self.plans.iter().map(|plan| plan.arch.name).collect();
        let media = self
            .plans
            .iter()
            .filter_map(|plan| image_sizes(plan).or_else(|| audio_lengths(plan)));
        let media: Vec<String> = media.collect();
        ProjectorSummary {
            file: self.path.display().to_string(),
            encoder: names.join(", "),
            weight_bytes: bytes(|plan| &plan.summary.bytes),
            compute_bytes: bytes(|plan| &plan.compute_bytes),
            rows: self.plans.iter().map(max_rows).max().unwrap_or(0),
            media: (!media.is_empty()).then(|| media.join("; ")),
        }
    }
}

impl ProjectorSummary {
    /// Prints the summary.
    pub fn print(&self, out: &mut dyn Write) -> Outcome {
        writeln!(out, "projector: {}, {}", self.file, self.encoder)?;
        let (weights, compute) = (format::mib(self.weight_bytes), format::mib(self.compute_bytes));
        writeln!(out, "  weights {weights}, compute buffers {compute}")?;
        if let Some(media) = &self.media {
            writeln!(out, "  {media}")?;
        }
        Ok(())
    }
}

/// Plans the encoders of a projector file. Encoders of a file with several that are not supported are omitted, unless
/// none is supported.
///
/// # Errors
/// Returns a [`ModelError`] if the file cannot be loaded.
pub fn encoder_plans(header: &Gguf, path: &Path, params: &LoadParams) -> Result<Vec<LoadPlan>, ModelError> {
    let media = encoder_media(&header.metadata);
    let (mut plans, mut unsupported) = (Vec::new(), None);
    for &medium in &media {
        let params = LoadParams {
            medium,
            ..params.clone()
        };
        match model::plan(header, path, archs::ENCODERS, &params) {
            Err(error @ ModelError::UnknownEncoder { .. }) if media.len() > 1 => unsupported = Some(error),
            planned => plans.push(planned?),
        }
    }
    match unsupported {
        Some(error) if plans.is_empty() => Err(error),
        _ => Ok(plans),
    }
}

/// Returns the maximum number of rows of an image, or of a chunk of audio.
fn max_rows(plan: &LoadPlan) -> usize {
    let n_rows = plan.result_shape[1];
    plan.image
        .map_or(n_rows, |rules| ImageSizes::described(rules, plan.row_count).max_rows())
}

/// Describes the sizes of images and the numbers of their rows. The maximum includes the tiles of large images.
pub fn image_sizes(plan: &LoadPlan) -> Option<String> {
    let (rules, n_rows) = (plan.image?, plan.result_shape[1]);
    let most = max_rows(plan);
    let rows = if most > n_rows {
        format!("up to {}", format::plural(most, "row"))
    } else {
        format::plural(n_rows, "row")
    };
    // The largest square image has `n_rows` rows.
    let largest = rules.largest().n_patches().max(1);
    Some(match rules.size {
        ImageSize::Area { unit, .. } if plan.row_count.is_fixed() => {
            format!("multiples of {unit} pixels, {rows}")
        }
        ImageSize::Fixed(side) | ImageSize::Padded(side) | ImageSize::Contained { side, .. } => {
            format!("{side} x {side} pixels, {largest} patches, {rows}")
        }
        ImageSize::Multiple { unit, min, .. } => {
            let min = plan.row_count.min(min * (unit / rules.patch.max(1)).pow(2));
            format!("multiples of {unit} pixels, {min} to {most} rows")
        }
        ImageSize::Area { unit, .. }
        | ImageSize::Longest { unit, .. }
        | ImageSize::Within { unit, .. }
        | ImageSize::Fitting { unit, .. }
        | ImageSize::Closest { unit, .. }
        | ImageSize::Stepped { unit, .. }
        | ImageSize::Extended { unit, .. }
        | ImageSize::Bordered { unit, .. } => {
            format!("multiples of {unit} pixels, up to {}", format::plural(most, "row"))
        }
    })
}

/// Describes the chunks of audio and the number of their rows.
pub fn audio_lengths(plan: &LoadPlan) -> Option<String> {
    let rules = plan.audio?;
    let (rate, n_mel) = (rules.rate, rules.n_mel);
    let rows = format::plural(plan.result_shape[1], "row");
    let seconds = rules.chunk_samples() as f64 / rate.max(1) as f64;
    Some(format!("{rate} Hz, {n_mel} mel filters, {seconds} s at a time, {rows}"))
}
