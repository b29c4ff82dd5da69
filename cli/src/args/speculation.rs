//! The flags of speculation: which tokens are guessed, and how.

use std::path::PathBuf;

use clap::Args;
use engine::speculate::MAX_DRAFTS;

use crate::failure::{Failure, Outcome};
use crate::loading::DraftPlacementArgs;

/// Tokens that are guessed, so that one pass over the weights can verify several. What is generated has the same distribution without.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Speculation")]
pub struct SpeculationArgs {
    /// Guess tokens by what followed the same ones earlier in the text: fast where answers repeat it
    #[arg(long)]
    pub lookup: bool,
    /// The same, and look in this file too
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub lookup_file: Option<PathBuf>,
    /// Guess tokens by a smaller model with the same vocabulary
    #[arg(long, value_name = "FILE", conflicts_with_all = ["lookup", "lookup_file"], hide_short_help = true)]
    pub draft: Option<PathBuf>,
    /// Guess tokens by the model's own layer of multi-token prediction, which files have that say nextn_predict_layers
    #[arg(long, conflicts_with_all = ["lookup", "lookup_file", "draft"])]
    pub mtp: bool,
    /// Where the smaller model goes
    #[command(flatten)]
    pub placement: DraftPlacementArgs,
    /// How to guess, as llama.cpp names it: none, draft-simple (--draft), draft-mtp (--mtp), or ngram-simple and the like (--lookup)
    #[arg(long, value_name = "TYPE", value_parser = spec_type, hide_short_help = true)]
    pub spec_type: Option<SpecType>,
    /// Most tokens guessed at once; fewer, or none, are where they would not pay
    #[arg(long, value_name = "N", default_value_t = MAX_DRAFTS as u8, hide_short_help = true, value_parser = clap::value_parser!(u8).range(1..=MAX_DRAFTS as i64))]
    pub draft_max: u8,
}

/// How tokens are guessed, as llama.cpp names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecType {
    /// Not at all.
    None,
    /// By a smaller model.
    Draft,
    /// By the model's own layer.
    Mtp,
    /// By what followed before.
    Lookup,
}

/// Names of llama.cpp.
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
    /// The same with what `--spec-type` says as the flags that it stands for.
    pub fn resolved(&self) -> Outcome<SpeculationArgs> {
        let mut args = self.clone();
        let has_others = |others: [bool; 2]| others.contains(&true);
        let (name, clashes) = match self.spec_type {
            None => return Ok(args),
            Some(SpecType::None) => {
                let (lookup, lookup_file) = (false, None);
                let (mtp, draft) = (false, None);
                return Ok(SpeculationArgs {
                    lookup,
                    lookup_file,
                    mtp,
                    draft,
                    ..args
                });
            }
            Some(SpecType::Draft) if self.draft.is_none() => {
                return Err(Failure::new(
                    "--spec-type draft-simple needs a smaller model: give one by --draft",
                ));
            }
            Some(SpecType::Draft) => ("draft-simple", false),
            Some(SpecType::Mtp) => {
                args.mtp = true;
                (
                    "draft-mtp",
                    has_others([self.draft.is_some(), self.lookup || self.lookup_file.is_some()]),
                )
            }
            Some(SpecType::Lookup) => {
                args.lookup = true;
                ("ngram", has_others([self.draft.is_some(), self.mtp]))
            }
        };
        match clashes {
            true => Err(Failure::new(format_args!(
                "--spec-type {name}: another way to guess tokens is asked for too"
            ))),
            false => Ok(args),
        }
    }

    /// True if tokens are to be guessed.
    pub fn is_wanted(&self) -> bool {
        self.mtp || self.lookup || self.lookup_file.is_some() || self.draft.is_some()
    }
}
