//! Arguments for chat templates and reasoning.

use std::path::PathBuf;

use clap::Args;

use super::values::Toggle;
use crate::failure::Outcome;
use crate::input;

/// Chat template and reasoning options.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Chat template")]
pub struct TemplateArgs {
    /// Jinja chat template or the name of one, such as chatml; replaces the model's own
    #[arg(
        long,
        value_name = "JINJA",
        conflicts_with = "chat_template_file",
        hide_short_help = true
    )]
    pub chat_template: Option<String>,
    /// File with a Jinja chat template; replaces the model's own
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub chat_template_file: Option<PathBuf>,
    /// Parse special tokens such as <|im_end|> in the content of messages
    ///
    /// By default, they are text, so that a message cannot contain another turn.
    #[arg(long, hide_short_help = true)]
    pub parse_special_content: bool,
    /// Extra template variables as JSON, such as {"enable_thinking": false}
    #[arg(long, value_name = "JSON", value_parser = json_object, hide_short_help = true)]
    pub chat_template_kwargs: Option<serde_json::Map<String, serde_json::Value>>,
    /// Turn reasoning on or off, if the template supports it; auto: template default
    #[arg(
        long,
        value_name = "MODE",
        ignore_case = true,
        default_value = "auto",
        alias = "think",
        hide_short_help = true
    )]
    pub reasoning: Toggle,
    /// Reasoning effort, such as low, medium, or high, if the template supports it
    ///
    /// `default` leaves the choice to the template.
    #[arg(long, value_name = "LEVEL", value_parser = clap::builder::NonEmptyStringValueParser::new(), hide_short_help = true)]
    pub reasoning_effort: Option<String>,
    /// Keep reasoning of earlier turns in the prompt, if the template supports it
    #[arg(long, overrides_with = "no_reasoning_preserve", hide_short_help = true)]
    pub reasoning_preserve: bool,
    /// Drop reasoning of earlier turns from the prompt, if the template supports it
    #[arg(long, hide_short_help = true)]
    pub no_reasoning_preserve: bool,
    /// Maximum reasoning tokens before the answer; -1: unlimited, 0: none
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true, hide_short_help = true,
          value_parser = clap::value_parser!(i64).range(-1..))]
    pub reasoning_budget: i64,
    /// Text appended to the reasoning when its budget is exhausted
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true,
        hide_short_help = true
    )]
    pub reasoning_budget_message: String,
    /// Hide the model's reasoning instead of dimming it
    ///
    /// Reasoning is recognized by the tags of the chat template.
    #[arg(long, alias = "hidethinking", hide_short_help = true)]
    pub hide_reasoning: bool,
}

impl TemplateArgs {
    /// Returns the Jinja template, given as text or as a file.
    pub fn source(&self) -> Outcome<Option<String>> {
        match &self.chat_template_file {
            Some(path) => Ok(Some(
                input::read_whole(path).map_err(|e| e.of_option("--chat-template-file"))?,
            )),
            None => Ok(self.chat_template.clone()),
        }
    }

    /// Returns the template variables that the flags set.
    pub fn variables(&self) -> serde_json::Map<String, serde_json::Value> {
        let mut variables = self.chat_template_kwargs.clone().unwrap_or_default();
        if let Some(is_on) = self.reasoning.choice() {
            variables.insert("enable_thinking".to_owned(), is_on.into());
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
