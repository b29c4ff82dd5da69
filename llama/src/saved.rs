//! Saved conversations: a JSON array of messages.

use std::fmt::Display;
use std::fs;
use std::path::Path;

use engine::chat::Message;
use serde_json::{Map, Value as Json};

use crate::{Error, Result};

/// Writes messages to a file. An error leaves the previous content of the file unchanged.
///
/// # Errors
/// [`Error::Conversation`] if the file cannot be written.
pub fn save_messages(messages: &[Message], file: &Path) -> Result<()> {
    let object = |message: &Message| {
        let mut object = Map::new();
        object.insert("role".to_owned(), message.role.as_str().into());
        object.insert("content".to_owned(), message.content.as_str().into());
        object.extend(message.fields.clone());
        Json::Object(object)
    };
    let json: Json = messages.iter().map(object).collect();
    let mut new = file.as_os_str().to_owned();
    new.push(".tmp");
    let written = fs::write(&new, format!("{json:#}\n")).and_then(|()| fs::rename(&new, file));
    written.map_err(|e| {
        let _ = fs::remove_file(&new);
        error(file, &e)
    })
}

/// Reads messages from a file that [`save_messages`] has written.
///
/// # Errors
/// [`Error::Conversation`] if the file cannot be read or contains anything else.
pub fn load_messages(file: &Path) -> Result<Vec<Message>> {
    let text = fs::read(file).map_err(|e| error(file, &e))?;
    let objects: Vec<Map<String, Json>> = serde_json::from_slice(&text).map_err(|e| error(file, &e))?;
    let message = |mut object: Map<String, Json>| {
        let mut take = |name: &str| match object.remove(name) {
            Some(Json::String(text)) => Ok(text),
            _ => Err(error(file, &format_args!("expected messages with the string `{name}`"))),
        };
        let mut message = Message::new(take("role")?, take("content")?);
        message.fields = object;
        Ok(message)
    };
    objects.into_iter().map(message).collect()
}

fn error(file: &Path, reason: &dyn Display) -> Error {
    Error::Conversation {
        file: file.to_owned(),
        reason: reason.to_string(),
    }
}
