//! Model of a command whose first argument names it.

use std::path::{Path, PathBuf};

use clap::Args;

use super::HubArgs;
use crate::failure::{Failure, Outcome};

/// Model file or name.
#[derive(Clone, Debug, Args)]
pub struct ModelArgs {
    /// GGUF file or model name
    #[arg(value_name = "MODEL", required_unless_present_any = ["model", "hf_repo", "model_url"], conflicts_with = "model")]
    pub first: Option<PathBuf>,
    /// GGUF file or model name; replaces MODEL
    #[arg(short, long, value_name = "FILE")]
    pub model: Option<PathBuf>,
}

impl ModelArgs {
    /// Returns the file or name, if given.
    pub fn given(&self) -> Option<&Path> {
        self.first.as_deref().or(self.model.as_deref())
    }

    /// Returns the file of the model, which is downloaded if necessary.
    pub fn file(&self, hub: &HubArgs) -> Outcome<PathBuf> {
        let file = hub.file(self.given())?;
        file.ok_or_else(|| Failure::new("no model given"))
    }
}
