//! Arguments for downloading models.

use clap::Args;
use llama::hub::{HubError, Name};

use crate::failure::Outcome;

/// Options for downloading models.
#[derive(Clone, Debug, Default, Args)]
pub struct HubArgs {
    /// Hugging Face repository and quantization (-hf), such as user/repo:Q4_K_M
    #[arg(long, value_name = "REPO[:QUANT]", hide_short_help = true, help_heading = HEADING)]
    pub hf_repo: Option<String>,
    /// File in the --hf-repo repository (-hff)
    #[arg(long, value_name = "PATH", requires = "hf_repo", hide_short_help = true, help_heading = HEADING)]
    pub hf_file: Option<String>,
    /// Hugging Face token (-hft) [default: HF_TOKEN or the stored login]
    #[arg(long, value_name = "TOKEN", hide_short_help = true, help_heading = HEADING)]
    pub hf_token: Option<String>,
    /// URL of a GGUF file (-mu)
    #[arg(long, value_name = "URL", conflicts_with = "hf_repo", hide_short_help = true, help_heading = HEADING)]
    pub model_url: Option<String>,
    /// Use only cached models; never access the network
    #[arg(long, hide_short_help = true, help_heading = HEADING)]
    pub offline: bool,
}

const HEADING: &str = "Model download";

impl HubArgs {
    /// Returns true if the options name a model.
    pub fn names_a_model(&self) -> bool {
        self.hf_repo.is_some() || self.model_url.is_some()
    }

    /// Returns the hub model that the options name.
    pub fn name(&self) -> Outcome<Option<Name>> {
        let Some(repo) = &self.hf_repo else { return Ok(None) };
        let name = Name::parse(repo).ok_or_else(|| HubError::invalid_name(repo))?;
        Ok(Some(match &self.hf_file {
            Some(file) => name.with_file(file),
            None => name,
        }))
    }
}
