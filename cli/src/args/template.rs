//! The flags of chat templates: how conversations become prompts.

use std::path::PathBuf;

use clap::Args;

/// How conversations become prompts.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Chat template")]
pub struct TemplateArgs {
    /// Chat template in place of the model's, in Jinja
    #[arg(
        long,
        value_name = "JINJA",
        conflicts_with = "chat_template_file",
        hide_short_help = true
    )]
    pub chat_template: Option<String>,
    /// The same, read from a file
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub chat_template_file: Option<PathBuf>,
    /// Further variables of the template, as a JSON object: {"enable_thinking": false}
    #[arg(long, value_name = "JSON", value_parser = json_object, hide_short_help = true)]
    pub chat_template_kwargs: Option<serde_json::Map<String, serde_json::Value>>,
    /// Whether the model is to think before it answers, where its template lets one choose: on, off or auto, as the template has it
    #[arg(long, value_name = "HOW", value_parser = ["on", "off", "auto"], default_value = "auto", alias = "think", hide_short_help = true)]
    pub reasoning: String,
    /// How hard the model is to think, where its template lets one choose: a word of the template's, such as low, medium or high; default leaves it to the template
    #[arg(long, value_name = "LEVEL", value_parser = clap::builder::NonEmptyStringValueParser::new(), hide_short_help = true)]
    pub reasoning_effort: Option<String>,
    /// Keep what the model thought in all of the conversation, where its template lets one choose
    #[arg(long, overrides_with = "no_reasoning_preserve", hide_short_help = true)]
    pub reasoning_preserve: bool,
    /// Leave what the model thought out of the conversation, where its template lets one choose
    #[arg(long, hide_short_help = true)]
    pub no_reasoning_preserve: bool,
    /// Most tokens that the model thinks before it has to answer; -1: as many as it likes, 0: none
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true, hide_short_help = true,
          value_parser = clap::value_parser!(i64).range(-1..))]
    pub reasoning_budget: i64,
    /// What the model is made to think where its thinking is cut off
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true,
        hide_short_help = true
    )]
    pub reasoning_budget_message: String,
    /// Leave out what the model thinks before it answers, between the tags that its template names; on terminals it is dimmed otherwise
    #[arg(long, alias = "hidethinking", hide_short_help = true)]
    pub hide_reasoning: bool,
}

impl TemplateArgs {
    /// The variables of the template.
    pub fn variables(&self) -> serde_json::Map<String, serde_json::Value> {
        let mut variables = self.chat_template_kwargs.clone().unwrap_or_default();
        if self.reasoning != "auto" {
            variables.insert("enable_thinking".to_owned(), (self.reasoning == "on").into());
        }
        if let Some(level) = self.reasoning_effort.as_ref().filter(|level| *level != "default") {
            variables.insert("reasoning_effort".to_owned(), level.as_str().into());
        }
        if self.reasoning_preserve || self.no_reasoning_preserve {
            variables.insert("preserve_reasoning".to_owned(), self.reasoning_preserve.into());
        }
        variables
    }
}

fn json_object(text: &str) -> Result<serde_json::Map<String, serde_json::Value>, String> {
    serde_json::from_str(text).map_err(|e| format!("expected a JSON object: {e}"))
}
