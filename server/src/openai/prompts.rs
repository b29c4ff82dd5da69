//! Prompts and texts of requests: strings, tokens, objects, and lists of them.

use engine::sample::Token;
use llama::parts::{IMAGE_MARK, MediaPrompt, Rendered};
use serde_json::Value as Json;

use crate::api::{ApiError, ApiResult, Fields, integer_of};
use crate::app::App;
use crate::chat::{ContentError, ContentReader, MediaFile, medium_of};
use crate::encoding::MediaInput;
use crate::service::ModelService;

/// Placeholder for a medium in a `prompt_string`.
pub const MEDIA_MARKER: &str = "<__media__>";

/// Prompts of a request.
#[derive(Clone)]
pub struct Prompts {
    prompts: Vec<Input>,
    /// Media of all prompts, in order.
    media: Vec<MediaFile>,
    /// True if the request has a list of prompts, even of a single one.
    pub is_list: bool,
    /// Field of prompts to embed; `None` for prompts to complete.
    embedded_as: Option<&'static str>,
}

#[derive(Clone)]
enum Input {
    Tokens(Vec<Token>),
    /// Text with a mark for each medium.
    WithMedia(String),
}

impl Prompts {
    /// Creates a single prompt without media.
    pub fn one(tokens: Vec<Token>) -> Prompts {
        Prompts {
            prompts: vec![Input::Tokens(tokens)],
            media: Vec::new(),
            is_list: false,
            embedded_as: None,
        }
    }

    /// Marks the prompts of a field as texts to embed.
    pub fn to_embed(self, field: &'static str) -> Prompts {
        Prompts {
            embedded_as: Some(field),
            ..self
        }
    }

    /// Returns the number of prompts.
    pub fn n_prompts(&self) -> usize {
        self.prompts.len()
    }

    /// Tokenizes the prompts, whose media are encoded.
    pub fn tokenized(self, service: &ModelService) -> ApiResult<Vec<MediaPrompt>> {
        let mut files = self.media.iter();
        let prompt = |input: Input| match (input, service.chat.media()) {
            (Input::WithMedia(text), Some(format)) => {
                let n = text.matches(IMAGE_MARK).count();
                let media: Vec<_> = files
                    .by_ref()
                    .take(n)
                    .map(MediaFile::encoded)
                    .collect::<ApiResult<_>>()?;
                let rendered = Rendered::plain(text);
                let tokens = format.layout.tokenized(service.vocab(), None, rendered, &media).tokens;
                Ok(MediaPrompt { tokens, media })
            }
            (Input::WithMedia(text), None) => Ok(MediaPrompt::from(service.tokens(&text))),
            (Input::Tokens(tokens), _) => Ok(MediaPrompt::from(tokens)),
        };
        self.prompts.into_iter().map(prompt).collect()
    }
}

impl MediaInput for Prompts {
    fn media(&mut self) -> &mut [MediaFile] {
        &mut self.media
    }

    fn check_length(&self, app: &App) -> ApiResult<()> {
        let prompts = self.clone().tokenized(&app.service)?;
        match self.embedded_as {
            Some(field) => app.embedder.check(&prompts, field),
            None => prompts
                .iter()
                .try_for_each(|prompt| app.service.check_length(&prompt.tokens)),
        }
    }
}

const EXPECTED: &str =
    "expected a string, a list of tokens and strings, an object with prompt_string, or a list of these";

/// Reads the prompts in a field of a route that accepts text only; at most `max`.
pub fn prompts(
    fields: &mut Fields,
    name: &str,
    max: usize,
    service: &ModelService,
    route: &'static str,
) -> ApiResult<Vec<Vec<Token>>> {
    let found = read(fields, name, max, service, ContentReader::text_only(route))?;
    let tokens = |input| match input {
        Input::Tokens(tokens) => tokens,
        Input::WithMedia(text) => service.tokens(&text),
    };
    Ok(found.prompts.into_iter().map(tokens).collect())
}

/// Reads the prompts in a field, with their media; at most `max`.
pub fn prompt_list(fields: &mut Fields, name: &str, max: usize, service: &ModelService) -> ApiResult<Prompts> {
    read(fields, name, max, service, service.chat.content_reader())
}

fn read(
    fields: &mut Fields,
    name: &str,
    max: usize,
    service: &ModelService,
    mut reader: ContentReader,
) -> ApiResult<Prompts> {
    reader.enter(name, "user");
    let missing = || ApiError::field(name, "missing; expected a string or tokens");
    let value = fields.take(name).ok_or_else(missing)?;
    let mut read = |value: Json| prompt(value, service, &mut reader).map_err(|error| error.of_field(name));
    let (prompts, is_list) = match value {
        // A list of tokens and strings is one prompt.
        Json::Array(list) if !list.iter().any(Json::is_number) => {
            if list.is_empty() || list.len() > max {
                let found = list.len();
                return Err(ApiError::field(
                    name,
                    format_args!("expected 1 to {max} prompts, found {found}"),
                ));
            }
            (list.into_iter().map(read).collect::<ApiResult<_>>()?, true)
        }
        one => (vec![read(one)?], false),
    };
    let (media, _) = reader.finish();
    Ok(Prompts {
        prompts,
        media,
        is_list,
        embedded_as: None,
    })
}

/// Reads one prompt. Returns an error message for other values.
fn prompt(value: Json, service: &ModelService, reader: &mut ContentReader) -> Result<Input, ContentError> {
    match value {
        Json::String(text) => Ok(Input::Tokens(service.tokens(&text))),
        Json::Array(list) if !list.is_empty() => {
            let tokens = mixed(&list, service).ok_or(EXPECTED)?;
            Ok(Input::Tokens(tokens))
        }
        Json::Object(mut fields) => match (fields.remove("prompt_string"), fields.remove("content")) {
            (Some(Json::String(text)), None) => with_media(
                &text,
                fields.remove("multimodal_data").unwrap_or_default(),
                service,
                reader,
            ),
            (None, Some(Json::Array(parts))) => of_parts(parts, service, reader),
            _ => Err(EXPECTED.into()),
        },
        _ => Err(EXPECTED.into()),
    }
}

/// Reads a prompt with media. Each [`MEDIA_MARKER`] of the text is a placeholder for the next medium.
fn with_media(
    text: &str,
    data: Json,
    service: &ModelService,
    reader: &mut ContentReader,
) -> Result<Input, ContentError> {
    let marks = reader.list(data).map_err(|error| error.prefixed("multimodal_data"))?;
    if marks.is_empty() {
        return Ok(Input::Tokens(service.tokens(text)));
    }
    let (n_media, n_marks) = (marks.chars().count(), text.matches(MEDIA_MARKER).count());
    if n_media != n_marks {
        return Err(format!(
            "multimodal_data: expected {n_media} of {MEDIA_MARKER} in prompt_string (one per file), found {n_marks}"
        )
        .into());
    }
    let pieces: Vec<String> = text
        .split(MEDIA_MARKER)
        .map(|piece| reader.plain(piece.to_owned()))
        .collect();
    Ok(Input::WithMedia(pieces.join(&IMAGE_MARK.to_string())))
}

/// Returns the tokens of a list of token ids and strings. Special tokens are added to a string at the start only.
fn mixed(list: &[Json], service: &ModelService) -> Option<Vec<Token>> {
    let mut tokens = Vec::with_capacity(list.len());
    for (i, part) in list.iter().enumerate() {
        match part {
            Json::String(text) => tokens.extend(service.vocab().tokenize(text, i == 0, true)),
            part => tokens.push(integer_of(part).and_then(|id| Token::try_from(id).ok())?),
        }
    }
    Some(tokens)
}

/// Reads the texts and media of content parts.
fn of_parts(parts: Vec<Json>, service: &ModelService, reader: &mut ContentReader) -> Result<Input, ContentError> {
    let is_read = |part: &&Json| part["text"].is_string() || part["type"].as_str().and_then(medium_of).is_some();
    if let Some(other) = parts.iter().find(|part| !is_read(part)) {
        let kind: String = other["type"].as_str().unwrap_or("none").chars().take(32).collect();
        return Err(format!("unsupported content part of type {kind:?}: expected text, an image, or audio").into());
    }
    let text = reader.text(parts.into())?;
    if text.contains(IMAGE_MARK) && reader.reads_media() {
        return Ok(Input::WithMedia(text));
    }
    Ok(Input::Tokens(service.tokens(&text)))
}
