//! Images and audio of a conversation.

use std::collections::HashMap;
use std::sync::Arc;

use engine::chat::Message;
use engine::context::MediaRows;
use serde_json::Value as Json;

use crate::images::{IMAGE_MARK, without_marks};
use crate::{Error, Result};

/// Field of a message with the ids of its media, in the order of their marks. Templates never see the field.
const FIELD: &str = "media";

/// Rows of the media that messages refer to, by id.
#[derive(Default)]
pub(crate) struct ChatMedia(HashMap<String, Arc<MediaRows>>);

impl ChatMedia {
    /// Creates a user message with media before its text.
    pub fn message(&mut self, question: &str, media: Vec<Arc<MediaRows>>) -> Message {
        let marks = IMAGE_MARK.to_string().repeat(media.len());
        let mut message = Message::user(marks + &without_marks(question));
        let ids = media.into_iter().map(|rows| {
            let id = format!("{:032x}", rows.id());
            self.0.insert(id.clone(), rows);
            Json::String(id)
        });
        let ids: Vec<Json> = ids.collect();
        if !ids.is_empty() {
            message.fields.insert(FIELD.to_owned(), ids.into());
        }
        message
    }

    /// Returns messages for the chat template, and the rows of their media in the order of the marks. Marks of other
    /// messages are replaced.
    ///
    /// # Errors
    /// Returns [`Error::ChangedMedia`] if a message has other marks than media, or its media are unknown.
    pub fn of(&self, messages: &[Message]) -> Result<(Vec<Message>, Vec<Arc<MediaRows>>)> {
        let mut rows = Vec::new();
        let mut cleaned = messages.to_vec();
        for message in &mut cleaned {
            let Some(ids) = message.fields.remove(FIELD) else {
                message.content = without_marks(&message.content);
                continue;
            };
            let ids = ids.as_array().map_or(&[][..], Vec::as_slice);
            let found = ids.iter().map(|id| self.0.get(id.as_str()?).cloned());
            let found: Vec<_> = found.collect::<Option<_>>().ok_or(Error::ChangedMedia)?;
            if message.content.matches(IMAGE_MARK).count() != found.len() {
                return Err(Error::ChangedMedia);
            }
            rows.extend(found);
        }
        Ok((cleaned, rows))
    }

    /// Removes media that no message refers to.
    pub fn retain(&mut self, messages: &[Message]) {
        let lists = messages
            .iter()
            .filter_map(|message| message.fields.get(FIELD)?.as_array());
        let ids: Vec<&str> = lists.flatten().filter_map(Json::as_str).collect();
        self.0.retain(|id, _| ids.contains(&id.as_str()));
    }

    /// Returns messages with a text in place of each medium.
    pub fn described(messages: &[Message]) -> Vec<Message> {
        let mut messages = messages.to_vec();
        for message in &mut messages {
            message.fields.remove(FIELD);
            message.content = without_marks(&message.content);
        }
        messages
    }
}
