//! Fields of fill-in-the-middle requests.

use crate::api::{ApiError, ApiResult, Field, Fields};
use crate::infill::InfillPrompt;

/// Fields of `/infill` in addition to those of `/completion`.
pub const INFILL_FIELDS: &[Field] = &[
    Field::text("input_prefix", "Text before the insertion point."),
    Field::text("input_suffix", "Text after the insertion point."),
    Field::list(
        "input_extra",
        "Other files as context: objects with `filename` and `text`.",
    ),
];

/// Reads [`INFILL_FIELDS`] and `prompt`.
pub fn read_infill(fields: &mut Fields) -> ApiResult<InfillPrompt> {
    let mut others = Vec::new();
    for (i, extra) in fields.list("input_extra")?.unwrap_or_default().iter().enumerate() {
        let (Some(name), Some(text)) = (extra["filename"].as_str(), extra["text"].as_str()) else {
            return Err(ApiError::field(
                &format!("input_extra[{i}]"),
                "expected an object with filename and text",
            ));
        };
        others.push((name.to_owned(), text.to_owned()));
    }
    let mut text = |name| -> ApiResult<String> { Ok(fields.text(name)?.unwrap_or_default()) };
    Ok(InfillPrompt {
        before: text("input_prefix")?,
        behind: text("input_suffix")?,
        inserted: text("prompt")?,
        others,
    })
}
