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
/// Returns [`Error::Conversation`] if the file cannot be written.
pub fn save_messages(messages: &[Message], file: &Path) -> Result<()> {
    let object = |message: &Message| {
        let mut object = Map::new();
        object.insert("role".to_owned(), message.role.as_str().into());
        object.insert("content".to_owned(), message.content.as_str().into());
        object.extend(message.fields.clone());
        Json::Object(object)
    };
    let json: Json = messages.iter().map(object).collect();
    // Renaming onto a device or a link would replace the device or the link.
    let target = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    if target.exists() && !target.is_file() {
        return Err(error(file, &"not a regular file"));
    }
    let mut new = target.as_os_str().to_owned();
    new.push(".tmp");
    let written = fs::write(&new, format!("{json:#}\n")).and_then(|()| fs::rename(&new, &target));
    written.map_err(|e| {
        let _ = fs::remove_file(&new);
        error(file, &e)
    })
}

/// Reads messages from a file that [`save_messages`] has written.
///
/// # Errors
/// Returns [`Error::Conversation`] if the file cannot be read or contains anything else.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saving_keeps_links_and_rejects_devices() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        for (link, target) in [("device", "/dev/null"), ("link", "chat.json")] {
            std::os::unix::fs::symlink(target, at(link)).unwrap();
        }
        fs::write(at("chat.json"), "[]").unwrap();
        let messages = [Message::new("user", "hello")];
        let error = save_messages(&messages, &at("device")).unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
        save_messages(&messages, &at("link")).unwrap();
        assert!(at("device").is_symlink() && at("link").is_symlink());
        assert_eq!(load_messages(&at("chat.json")).unwrap().len(), 1);
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 3);
    }
}
