//! Fields of other servers that control reasoning, mapped to template variables and the reasoning budget.

use serde_json::{Map, Value as Json};

use crate::api::{ApiError, ApiResult, Field, Fields, integer_of};

/// Request fields.
pub const FIELDS: &[Field] = &[
    Field::text(
        "reasoning_effort",
        "Reasoning effort, if the chat template supports it; `none` disables reasoning.",
    ),
    Field::integer(
        "reasoning_budget_tokens",
        "Maximum reasoning tokens, if the model has reasoning tags; -1: unlimited (`--reasoning-budget`).",
    ),
    Field::integer("thinking_budget_tokens", "Older name of `reasoning_budget_tokens`."),
    Field::flag("enable_thinking", "Like `chat_template_kwargs.enable_thinking`."),
    Field::any("think", "Ollama's field: true, false, or a reasoning effort."),
    Field::object("thinking", "Anthropic's field: `type` and `budget_tokens`."),
    Field::object("reasoning", "OpenRouter's field: `effort`, `max_tokens`, or `enabled`."),
];

/// Template variable that enables reasoning.
const ENABLED: &str = "enable_thinking";
/// Template variable of the reasoning effort.
const EFFORT: &str = "reasoning_effort";

/// Reads the fields into template variables. Returns the reasoning budget in tokens.
pub fn reasoning(fields: &mut Fields, variables: &mut Map<String, Json>) -> ApiResult<Option<i64>> {
    let budget = foreign(fields, variables)?;
    if let Some(effort) = fields.text("reasoning_effort")? {
        set_effort(variables, &effort);
    }
    let budgets = [
        fields.integer("reasoning_budget_tokens")?,
        fields.integer("thinking_budget_tokens")?,
        budget,
    ];
    Ok(budgets.into_iter().flatten().next())
}

fn set_effort(variables: &mut Map<String, Json>, effort: &str) {
    if effort == "none" {
        variables.insert(ENABLED.to_owned(), false.into());
    }
    variables.insert(EFFORT.to_owned(), effort.into());
}

/// Reads the fields that other servers use for the same purpose.
fn foreign(fields: &mut Fields, variables: &mut Map<String, Json>) -> ApiResult<Option<i64>> {
    let mut budget = None;
    if let Some(is_enabled) = fields.flag("enable_thinking")? {
        variables.entry(ENABLED).or_insert(is_enabled.into());
    }
    match fields.take("think") {
        None => {}
        Some(Json::Bool(is_enabled)) => _ = variables.insert(ENABLED.to_owned(), is_enabled.into()),
        Some(Json::String(effort)) => set_effort(variables, &effort),
        Some(_) => return Err(ApiError::field("think", "expected true, false, or a reasoning effort")),
    }
    if let Some(thinking) = fields.object("thinking")? {
        match thinking.get("type").and_then(Json::as_str) {
            Some("disabled") => _ = variables.insert(ENABLED.to_owned(), false.into()),
            Some("enabled" | "adaptive") => _ = variables.insert(ENABLED.to_owned(), true.into()),
            Some("auto") | None => {}
            Some(_) => {
                return Err(ApiError::field(
                    "thinking",
                    "expected type enabled, adaptive, auto, or disabled",
                ));
            }
        }
        budget = count(&thinking, "thinking", "budget_tokens")?;
    }
    if let Some(reasoning) = fields.object("reasoning")? {
        if let Some(is_enabled) = reasoning.get("enabled").and_then(Json::as_bool) {
            variables.insert(ENABLED.to_owned(), is_enabled.into());
        }
        if let Some(effort) = reasoning.get("effort").and_then(Json::as_str) {
            set_effort(variables, effort);
        }
        budget = count(&reasoning, "reasoning", "max_tokens")?.or(budget);
    }
    Ok(budget)
}

fn count(object: &Map<String, Json>, field: &str, key: &str) -> ApiResult<Option<i64>> {
    match object.get(key) {
        None | Some(Json::Null) => Ok(None),
        Some(value) => {
            let wrong = || ApiError::field(field, format_args!("{key}: expected a non-negative integer"));
            integer_of(value).filter(|&n| n >= 0).ok_or_else(wrong).map(Some)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: Json) -> ApiResult<(Json, Option<i64>)> {
        let Json::Object(body) = body else { unreachable!() };
        let mut fields = Fields::new(body, &[FIELDS], false)?;
        let mut variables = Map::new();
        let budget = reasoning(&mut fields, &mut variables)?;
        fields.finish()?;
        Ok((variables.into(), budget))
    }

    #[test]
    fn reasoning_fields_of_other_servers_become_variables() {
        for (body, variables, budget) in [
            (
                json!({"enable_thinking": false}),
                json!({"enable_thinking": false}),
                None,
            ),
            (json!({"think": true}), json!({"enable_thinking": true}), None),
            (json!({"think": "high"}), json!({"reasoning_effort": "high"}), None),
            (
                json!({"thinking": {"type": "disabled"}}),
                json!({"enable_thinking": false}),
                None,
            ),
            (
                json!({"thinking": {"type": "enabled", "budget_tokens": 7}}),
                json!({"enable_thinking": true}),
                Some(7),
            ),
            (
                json!({"reasoning": {"effort": "low"}}),
                json!({"reasoning_effort": "low"}),
                None,
            ),
            (
                json!({"reasoning": {"enabled": true, "max_tokens": 9, "exclude": false}}),
                json!({"enable_thinking": true}),
                Some(9),
            ),
            (
                json!({"reasoning": {"effort": "none"}}),
                json!({"enable_thinking": false, "reasoning_effort": "none"}),
                None,
            ),
            (
                json!({"reasoning_budget_tokens": 3, "thinking": {"budget_tokens": 5}}),
                json!({}),
                Some(3),
            ),
        ] {
            assert_eq!(read(body.clone()).unwrap(), (variables, budget), "{body}");
        }
        assert!(read(json!({"think": 3})).is_err());
        assert!(read(json!({"reasoning": {"max_tokens": "x"}})).is_err());
    }
}
