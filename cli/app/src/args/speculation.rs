//! Arguments for speculative decoding.

use std::path::PathBuf;

use clap::Args;
use engine::speculate::MAX_DRAFTS;

use super::DraftPlacementArgs;
use crate::failure::{Failure, Outcome};

/// Speculative decoding options. Drafted tokens are verified in one pass over the weights, so the output
/// distribution does not change.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Speculation")]
pub struct SpeculationArgs {
    /// Draft tokens from earlier occurrences of the last tokens in the context
    #[arg(long, alias = "lookup")]
    pub prompt_lookup: bool,
    /// Also draft tokens from matches in this file (implies --prompt-lookup)
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub lookup_file: Option<PathBuf>,
    /// Draft tokens with this smaller model, which must share the vocabulary
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt_lookup", "lookup_file"], hide_short_help = true)]
    pub draft: Option<PathBuf>,
    /// Draft tokens with the model's multi-token prediction layers
    ///
    /// The file's metadata lists these layers as `nextn_predict_layers`.
    #[arg(long, conflicts_with_all = ["prompt_lookup", "lookup_file", "draft"])]
    pub mtp: bool,
    #[command(flatten)]
    pub placement: DraftPlacementArgs,
    /// Drafting method by llama.cpp name, such as draft-simple or ngram-simple
    ///
    /// `draft-simple` needs --draft, `draft-mtp` is --mtp, and the ngram methods are --prompt-lookup.
    #[arg(long, value_name = "TYPE", value_parser = spec_type, hide_short_help = true)]
    pub spec_type: Option<SpecType>,
    /// Maximum tokens drafted per step
    ///
    /// Fewer tokens, or none, are drafted when verification would cost more time than it saves.
    #[arg(long, value_name = "N", default_value_t = MAX_DRAFTS as u8, hide_short_help = true, value_parser = clap::value_parser!(u8).range(1..=MAX_DRAFTS as i64))]
    pub draft_max: u8,
}

/// Drafting methods by llama.cpp name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecType {
    /// No speculation.
    None,
    /// Drafts come from a smaller model.
    Draft,
    /// Drafts come from the model's multi-token prediction layers.
    Mtp,
    /// Drafts come from earlier occurrences in the context.
    Lookup,
}

/// llama.cpp names of the methods.
const SPEC_TYPES: &[(&str, SpecType)] = &[
    ("none", SpecType::None),
    ("draft-simple", SpecType::Draft),
    ("draft-mtp", SpecType::Mtp),
    ("ngram-simple", SpecType::Lookup),
    ("ngram-map-k", SpecType::Lookup),
    ("ngram-map-k4v", SpecType::Lookup),
    ("ngram-mod", SpecType::Lookup),
    ("ngram-cache", SpecType::Lookup),
];

fn spec_type(text: &str) -> Result<SpecType, String> {
    let found = SPEC_TYPES.iter().find(|(name, _)| *name == text);
    found.map(|&(_, ty)| ty).ok_or_else(|| {
        let names: Vec<_> = SPEC_TYPES.iter().map(|(name, _)| *name).collect();
        format!("expected one of {}", names.join(", "))
    })
}

impl SpeculationArgs {
    /// Returns the options with `--spec-type` replaced by the flags that it implies.
    pub fn resolved(&self) -> Outcome<SpeculationArgs> {
        let mut args = self.clone();
        let has_others = |others: [bool; 2]| others.contains(&true);
        let (name, clashes) = match self.spec_type {
            None => return Ok(args),
            Some(SpecType::None) => {
                let (prompt_lookup, lookup_file) = (false, None);
                let (mtp, draft) = (false, None);
                return Ok(SpeculationArgs {
                    prompt_lookup,
                    lookup_file,
                    mtp,
                    draft,
                    ..args
                });
            }
            Some(SpecType::Draft) if self.draft.is_none() => {
                return Err(Failure::new(
                    "--spec-type draft-simple requires a draft model; add --draft FILE",
                ));
            }
            Some(SpecType::Draft) => ("draft-simple", false),
            Some(SpecType::Mtp) => {
                args.mtp = true;
                (
                    "draft-mtp",
                    has_others([self.draft.is_some(), self.prompt_lookup || self.lookup_file.is_some()]),
                )
            }
            Some(SpecType::Lookup) => {
                args.prompt_lookup = true;
                ("ngram", has_others([self.draft.is_some(), self.mtp]))
            }
        };
        if clashes {
            return Err(Failure::new(format_args!(
                "--spec-type {name} cannot be combined with another drafting method"
            )));
        }
        Ok(args)
    }

    /// Returns true if any drafting method is enabled.
    pub fn is_wanted(&self) -> bool {
        self.mtp || self.prompt_lookup || self.lookup_file.is_some() || self.draft.is_some()
    }
}
